"""The servers of all targets as Prometheus' HTTP service discovery reads them: they change with rollouts."""

from pydantic import Field

from flettner.agent.api.documents import Document
from flettner.agent.api.operations import Call, Operation, OperationResult


class ScrapeTargetsDocument(Document):
    targets: list[str] = Field(description="addresses of one server, each with `/metrics`")
    labels: dict[str, str] = Field(description="target, server and color (blue or green)")


async def _list(call: Call) -> OperationResult:
    groups = [
        ScrapeTargetsDocument(
            targets=[str(address) for address in server.addresses],
            labels={
                "target": name,
                "server": server.name,
                "color": "blue" if server in target.state.fleet.servers else "green",
            },
        )
        for name, target in sorted(call.daemon.targets().items())
        for server in target.state.reachable
    ]
    return OperationResult(value=groups)


OPERATIONS = (
    Operation(
        name="listScrapeTargets",
        method="GET",
        path="/v1/scrape-targets",
        role="viewer",
        summary="The addresses of all vLLM servers, for `http_sd_configs` of Prometheus",
        handler=_list,
        response=list[ScrapeTargetsDocument],
    ),
)
