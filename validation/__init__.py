"""How wrong are we, on what: predictions beside measurements and closed forms."""
