"""Deployments and their pods."""

from tests.support.kubernetes.api import Json
from tests.support.kubernetes.conformance.subject import (
    Subject,
    create,
    eventually,
    get,
    is_ready,
    merge,
    path,
    pods,
    ready,
)
from tests.support.kubernetes.manifests import container, deployment


class WorkloadConformance:
    async def test_a_deployment_has_its_pods(self, subject: Subject) -> None:
        await create(subject, "deployments", deployment("vllm", replicas=2, labels={"team": "a"}))
        documents = await ready(subject, "vllm", 2)

        async def look() -> Json:
            status = (await get(subject, "deployments", "vllm"))["status"]
            return dict(status) if status.get("availableReplicas") == 2 else {}

        status = await eventually(look)
        assert (status["replicas"], status["updatedReplicas"], status["readyReplicas"]) == (2, 2, 2)
        assert status["observedGeneration"] == 1
        for pod in documents:
            labels, [owner] = pod["metadata"]["labels"], pod["metadata"]["ownerReferences"]
            assert labels == {"app": "vllm", "team": "a", "pod-template-hash": labels["pod-template-hash"]}
            assert owner["kind"] == "ReplicaSet"
            assert owner["name"] == f"vllm-{labels['pod-template-hash']}"
            assert pod["metadata"]["name"].startswith(owner["name"])
            assert pod["status"]["phase"] == "Running"
            assert pod["status"]["podIP"]
            [own] = pod["status"]["containerStatuses"]
            assert (own["name"], own["restartCount"], own["ready"]) == ("vllm", 0, True)
            assert "running" in own["state"]

    async def test_pods_end_when_their_deployment_is_scaled_to_none(self, subject: Subject) -> None:
        await create(subject, "deployments", deployment("vllm"))
        await ready(subject, "vllm", 1)

        await merge(subject, "deployments", "vllm", {"spec": {"replicas": 0}})

        await ready(subject, "vllm", 0)

    async def test_pods_end_with_their_deployment(self, subject: Subject) -> None:
        await create(subject, "deployments", deployment("vllm"))
        await ready(subject, "vllm", 1)

        query = {"propagationPolicy": "Background"}
        await subject.http.delete(path(subject, "deployments", "vllm"), params=query)
        again = await create(subject, "deployments", deployment("vllm", replicas=0))

        await ready(subject, "vllm", 0)
        assert again.status_code == 201

    async def test_a_pod_with_other_labels_leaves_its_deployment(self, subject: Subject) -> None:
        """The pod that came in its place is not ready yet, so that fewer replicas end that one."""
        await create(subject, "deployments", deployment("vllm", replicas=2))
        first, second = await ready(subject, "vllm", 2)
        away = {"metadata": {"labels": {"app": None, "left": "yes"}}}

        await merge(subject, "pods", first["metadata"]["name"], away)
        await merge(subject, "deployments", "vllm", {"spec": {"replicas": 1}})

        async def look() -> bool:
            remaining = await pods(subject, "vllm")
            return [document["metadata"]["uid"] for document in remaining] == [second["metadata"]["uid"]]

        await eventually(look)
        released = await get(subject, "pods", first["metadata"]["name"])
        assert is_ready(released)
        assert "deletionTimestamp" not in released["metadata"]

    async def test_an_evicted_pod_is_replaced_and_stays(self, subject: Subject) -> None:
        await create(subject, "deployments", deployment("vllm"))
        [old] = await ready(subject, "vllm", 1)

        await subject.evict("vllm")

        async def look() -> list[Json]:
            documents = await pods(subject, "vllm")
            return documents if len(documents) == 2 and sum(map(is_ready, documents)) == 1 else []

        by_uid = {document["metadata"]["uid"]: document for document in await eventually(look)}
        evicted = by_uid[old["metadata"]["uid"]]
        assert (evicted["status"]["phase"], evicted["status"]["reason"]) == ("Failed", "Evicted")
        await merge(subject, "deployments", "vllm", {"spec": {"replicas": 0}})

        async def only_the_evicted() -> bool:
            left = await pods(subject, "vllm")
            return [document["metadata"]["uid"] for document in left] == [old["metadata"]["uid"]]

        await eventually(only_the_evicted)

    async def test_a_container_that_exits_is_started_again(self, subject: Subject) -> None:
        await create(subject, "deployments", deployment("vllm"))
        [old] = await ready(subject, "vllm", 1)

        await subject.exit("vllm")

        async def look() -> Json:
            [pod] = await pods(subject, "vllm")
            [own] = pod["status"]["containerStatuses"]
            return pod if own["restartCount"] and is_ready(pod) else {}

        pod = await eventually(look)
        assert pod["metadata"]["uid"] == old["metadata"]["uid"]
        assert "exitCode" in pod["status"]["containerStatuses"][0]["lastState"]["terminated"]

    async def test_a_new_template_replaces_pods_one_after_the_other(self, subject: Subject) -> None:
        await create(subject, "deployments", deployment("vllm"))
        [old] = await ready(subject, "vllm", 1)
        both: list[bool] = []

        await merge(
            subject,
            "deployments",
            "vllm",
            {"spec": {"template": {"spec": {"containers": [container("tiny")]}}}},
        )

        async def look() -> bool:
            documents = await pods(subject, "vllm")
            both.append(len(documents) == 2 and any(map(is_ready, documents)))
            return len(documents) == 1 and documents[0]["metadata"]["uid"] != old["metadata"]["uid"]

        await eventually(look)
        assert any(both)
        [new] = await ready(subject, "vllm", 1)
        assert new["spec"]["containers"][0]["args"] == ["tiny"]

    async def test_recreate_ends_the_old_pods_first(self, subject: Subject) -> None:
        body = deployment("vllm")
        body["spec"]["strategy"] = {"type": "Recreate"}
        await create(subject, "deployments", body)
        [old] = await ready(subject, "vllm", 1)
        most: list[int] = []

        await merge(
            subject,
            "deployments",
            "vllm",
            {"spec": {"template": {"spec": {"containers": [container("tiny")]}}}},
        )

        async def look() -> bool:
            documents = await pods(subject, "vllm")
            most.append(len(documents))
            return bool(documents) and documents[0]["metadata"]["uid"] != old["metadata"]["uid"]

        await eventually(look)
        await ready(subject, "vllm", 1)
        assert max(most) == 1

    async def test_a_pod_without_a_node_says_why(self, subject: Subject) -> None:
        await create(subject, "deployments", deployment("vllm", container(gpus=3)))

        async def look() -> Json:
            """At first the message may name the taint of the new node instead."""
            for pod in await pods(subject, "vllm"):
                for condition in pod["status"].get("conditions", ()):
                    if "Insufficient nvidia.com/gpu" in condition.get("message", ""):
                        return condition  # type: ignore[no-any-return]
            return {}

        condition = await eventually(look)
        assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
        assert condition["reason"] == "Unschedulable"
        await merge(subject, "deployments", "vllm", {"spec": {"replicas": 0}})
        await ready(subject, "vllm", 0)  # without a node it needs no kubelet to end
