"""Tables on comparable scales, and the latent factors behind them."""

__all__: list[str] = []
