"""Titles and texts of pull requests, in Markdown. Pure."""

from flettner.agent.domain.amounts import describe_amount
from flettner.agent.domain.rollout import Rollout
from flettner.agent.domain.state import State
from flettner.agent.domain.suggestion import Suggestion
from flettner.agent.gitops.applied_changes import Comparison
from flettner.agent.gitops.forge import PullRequestText
from flettner.agent.notify.rules import describe_changes
from flettner.redaction import mask
from flettner.rules.table import name_of
from flettner.vllm_facts.values import Setting

_WATCHED = "If the servers are worse with it, another pull request takes it back here."
LONGEST_TITLE, LONGEST_BODY = 200, 20_000


def describe_suggestion(state: State, suggestion: Suggestion, base: str) -> PullRequestText:
    """The text shows all that an approval names by the digest."""
    proposal = suggestion.proposal
    changes = describe_changes(suggestion.before, proposal.to)
    if owner := suggestion.preflight.owner:
        merging = f"{owner} applies it once it is merged; flettner changes nothing itself. {_WATCHED}"
    elif state.mode == "advise":
        merging = (
            "The mode is advise: who starts the servers applies it; flettner changes nothing itself. "
            f"{_WATCHED}"
        )
    else:
        merging = (
            "**Merging this approves the suggestion**, if flettner's config names you: the change is rolled "
            "out beside the servers in force, and rolled back if it is worse. Then another pull request "
            "takes it back here."
        )
    rows = [
        f"| {_plain(row.metric)} | {_plain(describe_amount(row.value, row.unit))} | {row.window_s:g} s |"
        for row in proposal.evidence
    ]
    body = [
        f"{_plain(proposal.why)}.",
        f"- Expected: {_plain(proposal.expects)}",
        f"- Risk: {_plain(proposal.risks)}",
        *(f"- Rollout: {_plain(note)}" for note in suggestion.notes),
        f"- Rule: {name_of(proposal.rule)}; open until {suggestion.expires_at:%Y-%m-%d %H:%M} UTC",
        *(("", "| evidence | value | window |", "|---|---|---|", *rows) if rows else ()),
        "",
        merging,
        "",
        f"Suggestion `{suggestion.id}`, digest `{suggestion.digest}`",
    ]
    return _text(suggestion.id, base, f"{suggestion.target}: {changes}", body)


def describe_reversal(rollout: Rollout, base: str) -> PullRequestText:
    suggestion = rollout.suggestion
    changes = describe_changes(suggestion.proposal.to, suggestion.before)
    body = [
        f"The rollout `{rollout.id}` of `{suggestion.id}` was rolled back: {_plain(rollout.why)}.",
        "",
        "The servers run with the earlier values; this takes the merged change back.",
    ]
    return _text(f"revert-{suggestion.id}", base, f"{suggestion.target}: take back {changes}", body)


def describe_regression(
    target: str, suggestion: str, before: Setting, to: Setting, why: str, base: str
) -> PullRequestText:
    """Of a merged change without a rollout, with which the servers are worse."""
    caution = (
        "It was applied to all servers without a canary, so that load or another change may be the cause: "
        "look before you merge. This takes the change back."
    )
    body = [f"With the merged change of `{suggestion}` in force: {_plain(why)}.", "", caution]
    return _text(f"revert-{suggestion}", base, f"{target}: take back {describe_changes(to, before)}", body)


def describe_comparison(suggestion: str, url: str, comparison: Comparison) -> str:
    """The result for the audit; of a comparison that has one."""
    results = {
        "worse": "the servers are worse with it, and another pull request takes it back",
        "kept": "the servers are not worse with it",
        "unknown": "whether the servers are worse with it is not known",
    }
    return f"{suggestion} was applied after {url} was merged: {results[comparison.verdict]}: {comparison.why}"


def _text(name: str, base: str, title: str, body: list[str]) -> PullRequestText:
    return PullRequestText(
        branch=f"flettner/{name}",
        base=base,
        title=mask(title)[:LONGEST_TITLE],
        body=mask("\n".join(body))[:LONGEST_BODY],
    )


def _plain(text: str) -> str:
    """One line that makes no mention, link, image or HTML."""
    line = " ".join(text.split()).replace("@", "@\u2060").replace("<", "&lt;").replace("|", "\\|")
    return line.replace("[", "\\[").replace("`", "'")
