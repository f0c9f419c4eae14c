"""What a result answers: who is who in one table, who else it could be, how good it is and why."""

from keyless.answers.explaining import Explanation, PairExplanation, RowExplanation
from keyless.answers.questions import Question
from keyless.answers.scoring import Rate, Score, Threshold

__all__ = ["Explanation", "PairExplanation", "Question", "Rate", "RowExplanation", "Score", "Threshold"]
