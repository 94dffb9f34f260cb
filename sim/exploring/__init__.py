"""What the page asks of a scenario: an estimate at once, its doubt, its bottleneck, what to change.

Everything here is computed from step tables or by running changed scenarios; nothing is looked up.
"""
