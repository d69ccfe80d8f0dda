"""Error rates and detection times of the judge, measured with synthetic traffic through its production code.

Sections: nulls worse late rollouts passing gain hot buckets cost. `python -m bench.judge --help`.
"""
