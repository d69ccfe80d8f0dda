"""What the policies were asked with in the latest second, so that others can ask them again."""

from dataclasses import replace
from typing import Any

from pydantic import Field

from flettner.agent.api.documents import Document
from flettner.agent.api.operations import Call, Operation
from flettner.agent.api.routes.targets import find_target
from flettner.redaction import masked


class InputsDocument(Document):
    state: dict[str, Any] = Field(description="of the target, as in the audit")
    observed: dict[str, Any] | None = Field(
        description="the reading, the findings in the flags in force and the advice of the performance "
        "model; null: nothing was measured yet"
    )


async def _show(call: Call) -> InputsDocument:
    target = find_target(call)
    observed = target.observed
    if observed is not None:  # the judge's part is large, and no policy sees it
        observed = replace(observed, arms={}, clients={}, engines={}, calibration={})
    return InputsDocument(state=masked(target.state), observed=masked(observed))


OPERATIONS = (
    Operation(
        name="showInputs",
        method="GET",
        path="/v1/targets/{name}/inputs",
        role="viewer",
        summary="What the policies were asked with in the latest second, without secrets",
        handler=_show,
        response=InputsDocument,
        errors={404: "No such target."},
    ),
)
