"""How often the judge is wrong, and how soon it is right: synthetic traffic through the code that decides.

Sections: nulls worse late rollouts passing gain several quiet exposure cost. `python -m bench.judge --help`.
"""
