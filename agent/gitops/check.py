"""Whether pull requests can be made for a target: repository, file, the server in it, and the forge."""

from pathlib import Path

from flettner.agent.config.git import GitOptions
from flettner.agent.domain.errors import ForgeError
from flettner.agent.gitops.repository import GitCommandError, GitRepository
from flettner.redaction import mask
from flettner.vllm_facts.errors import FlagError
from flettner.vllm_facts.launch_files.verified_edits import change_flags

BRANCH = "flettner/check"  # is never pushed


async def find_git_problems(git: GitOptions) -> list[str]:
    """List what is wrong, each with the key and what to do; empty if a suggestion gets its pull request."""
    try:
        token = git.read_token()
    except ForgeError as error:
        return [f"token_file: {error}"]
    return [why for why in (await _check_repository(git, token), await _check_forge(git, token)) if why]


async def _check_repository(git: GitOptions, token: str) -> str:
    repository = GitRepository(url=git.repository, branch=git.branch, path=git.path)
    try:
        await repository.check(
            BRANCH, lambda text: change_flags(Path(git.path).name, text, git.server, {}), token
        )
    except GitCommandError as error:
        return _explain(git, error)
    except ForgeError as error:
        return (
            f"path: {error}; name the file that holds the server's command, from the root of the repository"
        )
    except FlagError as error:
        return (
            f"path: {error}; `flettner lint -f` of the file shows what is read in it: name the file with the "
            "server's command, and in `server` which of several"
        )
    return ""


def _explain(git: GitOptions, error: GitCommandError) -> str:
    how = "token_file holds the token for HTTPS, and the daemon's user the key for SSH"
    if error.command == "push":
        return (
            f"repository: nothing may be pushed to {mask(git.repository)}: {error}; {how}: it needs to write"
        )
    return (
        f"repository: {git.branch} of {mask(git.repository)} cannot be read: {error}; correct repository and "
        f"branch; {how}"
    )


async def _check_forge(git: GitOptions, token: str) -> str:
    try:
        await git.forge.check(token)
    except ForgeError as error:
        return (
            f"forge: the API does not list the pull requests: {error}; correct project and api, and give a "
            "token_file whose token may write pull requests"
        )
    return ""
