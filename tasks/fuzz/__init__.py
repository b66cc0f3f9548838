"""Generated cases: choices over bounded integers, what they are drawn from, and the cases that they make."""
