"""Watches of a collection."""

import asyncio
from contextlib import aclosing

from tests.support.kubernetes.conformance.subject import WITHIN_S, Subject, create, first, lines, merge, path
from tests.support.kubernetes.manifests import headless_service


class WatchConformance:
    async def test_a_watch_continues_from_a_list(self, subject: Subject) -> None:
        await create(subject, "services", headless_service("a", {"app": "vllm"}))
        listed = (await subject.http.get(path(subject, "services"))).json()
        await create(subject, "services", headless_service("b", {"app": "vllm"}))
        await merge(subject, "services", "a", {"metadata": {"labels": {"x": "1"}}})
        await subject.http.delete(path(subject, "services", "b"))

        async with aclosing(
            lines(subject, "services", resourceVersion=listed["metadata"]["resourceVersion"])
        ) as events:
            changes = await first(events, 3)

        assert changes == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]

    async def test_a_watch_without_a_version_begins_with_what_is_there(self, subject: Subject) -> None:
        await create(subject, "services", headless_service("a", {"app": "vllm"}))

        async with aclosing(lines(subject, "services")) as events:
            assert await first(events, 1) == [("ADDED", "a")]
            await merge(subject, "services", "a", {"metadata": {"labels": {"x": "1"}}})
            assert await first(events, 1) == [("MODIFIED", "a")]

    async def test_an_object_that_no_longer_matches_is_deleted_for_a_watch(self, subject: Subject) -> None:
        body = headless_service("a", {"app": "vllm"})
        body["metadata"]["labels"] = {"x": "1"}
        await create(subject, "services", body)

        async with aclosing(lines(subject, "services", labelSelector="x=1")) as events:
            assert await first(events, 1) == [("ADDED", "a")]
            await merge(subject, "services", "a", {"metadata": {"labels": {"x": "2"}}})
            assert await first(events, 1) == [("DELETED", "a")]
            await merge(subject, "services", "a", {"metadata": {"labels": {"x": "1"}}})
            assert await first(events, 1) == [("ADDED", "a")]

    async def test_a_watch_ends_after_its_timeout(self, subject: Subject) -> None:
        async with aclosing(lines(subject, "services", timeoutSeconds="1")) as events:
            assert await first(events, 99) == []

    async def test_a_version_that_is_too_old_is_gone(self, subject: Subject) -> None:
        listed = (await subject.http.get(path(subject, "services"))).json()
        await create(subject, "services", headless_service("a", {"app": "vllm"}))
        await subject.forget_history()

        version = listed["metadata"]["resourceVersion"]
        async with aclosing(lines(subject, "services", resourceVersion=version)) as events:
            async with asyncio.timeout(WITHIN_S):
                event = await anext(events)

        assert event["type"] == "ERROR"
        assert (event["object"]["code"], event["object"]["kind"]) == (410, "Status")
