"""Any number of tables linked together: one factor model, every table matched against all the others."""

from keyless.joint.joint_link import JointLink, link_tables
from keyless.joint.watch import Start

__all__ = ["JointLink", "Start", "link_tables"]
