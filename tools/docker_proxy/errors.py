"""What the proxy raises on purpose.

Refused      the request is against the policy (403); the text is the reason
  TooLarge   ... and was not even read to its end (413)
Absent       the engine knows no such container, image or network (404)
EngineSilent the engine does not answer, or not with what its API promises (502)
PolicyError  the policy file is wrong; the proxy does not start
"""


class Refused(Exception):  # noqa: N818 - a verdict, no fault
    pass


class TooLarge(Refused):
    pass


class Absent(Exception):  # noqa: N818 - an answer, no fault
    pass


class EngineSilent(Exception):  # noqa: N818 - a state of the engine
    pass


class PolicyError(Exception):
    pass
