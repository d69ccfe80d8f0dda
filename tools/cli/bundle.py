"""`flettner bundle`: one file for a support request, and the suggestions that follow from such a file."""

import argparse
import io
import json
import platform
import tarfile
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from flettner.agent.api.client import RefusedError, UnreachableError, connect
from flettner.agent.config.loader import Config, build_config, load_config
from flettner.agent.domain.errors import ConfigError
from flettner.primitives.wall_clock import utc_now
from flettner.rules.table import name_of
from flettner.tools.cli.bundle_contents import (
    Contents,
    add_daemon,
    add_journal,
    clean,
    clean_config,
    hide_names,
)
from flettner.tools.cli.dispatch import Subparsers, add_command, find_version
from flettner.tools.cli.exits import NO, OK
from flettner.tools.cli.remote_command import add_remote_options, print_text
from flettner.tools.terminal.tables import format_table
from flettner.tools.terminal.values import escape_text, format_value

MANIFEST = "manifest.json"
FORMAT = 1
LARGEST = 512 * 2**20  # of a file in a bundle that is read


def add_bundle(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "bundle",
        "write what a support request needs into one file",
        "The config, the first and last entries of the audit and the result of its verification, metrics, "
        "law, load, and what the policies are asked with; without secrets, values of environments and text "
        "of prompts. What cannot be read is named in manifest.json, so that it also works without a daemon. "
        "Exit status 1: the daemon or the journal is missing.",
    )
    parser.add_argument("config", type=Path, nargs="?", metavar="FILE", help="the daemon's config")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="BUNDLE",
        help="the file to write; default: flettner-bundle-TIME.tar.gz; it must not exist",
    )
    parser.add_argument(
        "--hide-names",
        action="store_true",
        help="replace the names of targets, models, containers, people and hosts, each by the same other one",
    )
    parser.add_argument(
        "--replay", type=Path, metavar="BUNDLE", help="ask the policies again with what a bundle holds"
    )
    add_remote_options(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if (args.config is None) == (args.replay is None):
        raise ConfigError("give the daemon's config to write a bundle, or --replay BUNDLE to read one")
    if args.replay is not None:
        return _replay(args.replay)
    config = load_config(args.config)
    now = utc_now()
    output = args.output or Path(f"flettner-bundle-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    contents = _collect(args, config)
    manifest = {
        "format": FORMAT,
        "written_at": now.isoformat(),
        "flettner": find_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "names_hidden": args.hide_names,
        "missing": contents.missing,
        "files": {name: sha256(content).hexdigest() for name, content in sorted(contents.files.items())},
    }
    contents.files[MANIFEST] = json.dumps(manifest, indent=1).encode()
    try:
        with output.open("xb") as file:
            output.chmod(0o600)
            write_archive(file, contents)
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror}") from error
    lines = [f"{output}: {len(contents.files)} files, {output.stat().st_size} bytes"]
    lines += [f"missing: {escape_text(name)}: {escape_text(why)}" for name, why in contents.missing.items()]
    lines.append("read it before you send it: it holds flags, names and log lines of your servers")
    print_text("\n".join(lines))
    return NO if contents.missing.keys() & {"daemon", "journal"} else OK


def _collect(args: argparse.Namespace, config: Config) -> Contents:
    contents = Contents()
    targets = [target.name for target in config.targets]
    contents.add_json("config.json", clean_config(tomllib.loads(args.config.read_text(encoding="utf-8"))))
    contents.try_to_add("journal", lambda: add_journal(contents, config.state_dir / "audit.jsonl"))
    daemon = connect(args.url, args.token_file)
    try:
        daemon.get("/v1/me")
        add_daemon(contents, daemon, targets)
    except (UnreachableError, RefusedError) as error:
        contents.missing["daemon"] = str(clean(str(error)))
    if args.hide_names:
        hide_names(contents, targets)
    return contents


def write_archive(file: IO[bytes], contents: Contents) -> None:
    """The same contents give the same archive, but for the time in the gzip header."""
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in sorted(contents.files.items()):
            entry = tarfile.TarInfo(f"flettner-bundle/{name}")
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))


def read_archive(path: Path) -> dict[str, Any]:
    """Return the JSON documents of a bundle by name. Raises ConfigError."""
    documents: dict[str, Any] = {}
    try:
        with tarfile.open(path) as archive:
            for entry in archive:
                name = entry.name.partition("/")[2]
                if not (entry.isfile() and name.endswith(".json") and entry.size <= LARGEST):
                    continue
                if (content := archive.extractfile(entry)) is not None:
                    documents[name] = json.loads(content.read())
    except (OSError, tarfile.TarError, ValueError) as error:
        raise ConfigError(f"{path}: is no bundle that can be read: {error}") from error
    if documents.get(MANIFEST, {}).get("format") != FORMAT:
        raise ConfigError(f"{path}: is no bundle of format {FORMAT}")
    return documents


def replayable_config(document: dict[str, Any]) -> Config:
    """Return the config of a bundle without what no policy sees: API, notices, golden prompts, windows."""
    agent = {key: value for key, value in document.get("agent", {}).items() if key != "audit"}
    targets = [
        {key: value for key, value in target.items() if key not in {"quality", "windows"}}
        for target in document.get("targets", ())
    ]
    kept = {key: value for key, value in document.items() if key not in {"api", "notify", "windows"}}
    return build_config({**kept, "agent": agent, "targets": targets}, here=Path("/"))


def _replay(path: Path) -> int:
    from flettner.agent.runtime.replay import replay  # noqa: PLC0415 - as `flettner run`

    documents = read_archive(path)
    config = replayable_config(documents["config.json"])
    rows, missing = [], []
    for target in config.targets:
        inputs = documents.get(f"targets/{target.name}/inputs.json")
        if inputs is None:
            missing.append(target.name)
            continue
        for asked, answer in replay(config, inputs).admitted:
            change = (
                ", ".join(f"{knob}={format_value(value)}" for knob, value in asked.to.items()) or "advice"
            )
            held = getattr(answer, "why", "") if not hasattr(answer, "proposal") else ""
            rows.append((target.name, name_of(asked.rule), change, held or asked.proposal.why))
    print_text(
        format_table(("TARGET", "RULE", "CHANGE", "WHY"), rows) if rows else "no policy proposes anything"
    )
    for name in missing:
        print_text(f"{escape_text(name)}: the bundle does not hold what its policies were asked with")
    return NO if missing else OK
