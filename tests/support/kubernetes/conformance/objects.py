"""Objects, versions and patches."""

from tests.support.kubernetes.conformance.subject import Subject, create, get, json_patch, merge, path
from tests.support.kubernetes.manifests import container, deployment, headless_service


class ObjectConformance:
    """`subject`: a fixture of the module that derives from this class."""

    async def test_a_created_deployment_has_the_defaults(self, subject: Subject) -> None:
        made = (
            await create(subject, "deployments", deployment("vllm", replicas=0, labels={"a": "b"}))
        ).json()

        spec, template = made["spec"], made["spec"]["template"]
        assert made["metadata"]["generation"] == 1
        assert made["metadata"]["uid"]
        assert made["kind"] == "Deployment"
        assert {key: value for key, value in spec.items() if key != "template"} == {
            "replicas": 0,
            "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": 60,
            "selector": {"matchLabels": {"app": "vllm"}},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
            },
        }
        assert template["metadata"]["labels"] == {"app": "vllm", "a": "b"}
        [first_container] = template["spec"].pop("containers")
        assert template["spec"] == {
            "dnsPolicy": "ClusterFirst",
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "terminationGracePeriodSeconds": 5,
        }
        assert first_container["readinessProbe"] == {
            "failureThreshold": 3,
            "httpGet": {"path": "/health", "port": "http", "scheme": "HTTP"},
            "periodSeconds": 1,
            "successThreshold": 1,
            "timeoutSeconds": 5,
        }
        assert first_container["ports"] == [{"containerPort": 8000, "name": "http", "protocol": "TCP"}]
        assert first_container["terminationMessagePath"] == "/dev/termination-log"
        assert first_container["resources"] == {}

    async def test_a_name_is_taken_once(self, subject: Subject) -> None:
        body = headless_service("chat", {"app": "vllm"})
        first_answer = await create(subject, "services", body)
        second = await create(subject, "services", body)

        assert first_answer.status_code == 201
        assert (second.status_code, second.json()["reason"]) == (409, "AlreadyExists")

    async def test_a_dry_run_stores_nothing(self, subject: Subject) -> None:
        answer = await create(subject, "deployments", deployment("vllm"), dryRun="All")

        lookup = await subject.http.get(path(subject, "deployments", "vllm"))
        assert answer.status_code == 201
        assert (lookup.status_code, lookup.json()["reason"]) == (404, "NotFound")

    async def test_what_is_not_there_is_not_found(self, subject: Subject) -> None:
        answers = [
            await subject.http.get(path(subject, "deployments", "gone")),
            await merge(subject, "deployments", "gone", {"spec": {"replicas": 1}}),
            await subject.http.delete(path(subject, "deployments", "gone")),
            await subject.http.get(path(subject, "pods", "gone") + "/log"),
        ]

        assert [answer.status_code for answer in answers] == [404, 404, 404, 404]

    async def test_a_merge_patch_removes_with_null_and_replaces_lists(self, subject: Subject) -> None:
        given = deployment("vllm", container("tiny", "--seed", "1"), replicas=0)
        given["metadata"]["annotations"] = {"a": "1", "b": "2"}
        await create(subject, "deployments", given)
        spec = {"template": {"spec": {"containers": [container("tiny")]}}}

        answer = await merge(
            subject, "deployments", "vllm", {"metadata": {"annotations": {"a": None}}, "spec": spec}
        )

        stored = await get(subject, "deployments", "vllm")
        assert answer.status_code == 200
        assert "a" not in stored["metadata"]["annotations"]
        assert stored["metadata"]["annotations"]["b"] == "2"
        assert stored["spec"]["template"]["spec"]["containers"][0]["args"] == ["tiny"]

    async def test_generations_count_changes_of_the_spec_and_of_annotations(self, subject: Subject) -> None:
        await create(subject, "deployments", deployment("vllm", replicas=0, paused=True))
        generations = []
        for change in (
            {"metadata": {"labels": {"x": "1"}}},
            {"metadata": {"annotations": {"x": "1"}}},
            {"spec": {"minReadySeconds": 1}},
            {"status": {"replicas": 7}},
        ):
            answer = await merge(subject, "deployments", "vllm", change)
            generations.append(answer.json()["metadata"]["generation"])

        assert [generation - generations[0] for generation in generations] == [0, 1, 2, 2]
        assert (await get(subject, "deployments", "vllm"))["status"].get("replicas", 0) == 0

    async def test_a_patch_that_changes_nothing_keeps_the_version(self, subject: Subject) -> None:
        await create(subject, "services", headless_service("chat", {"app": "vllm"}))
        before = await get(subject, "services", "chat")

        same = await merge(subject, "services", "chat", {"spec": {"selector": {"app": "vllm"}}})
        other = await merge(subject, "services", "chat", {"spec": {"selector": {"app": "green"}}})

        version = before["metadata"]["resourceVersion"]
        assert same.json()["metadata"]["resourceVersion"] == version
        assert int(other.json()["metadata"]["resourceVersion"]) > int(version)

    async def test_a_write_with_an_old_version_is_refused(self, subject: Subject) -> None:
        await create(subject, "services", headless_service("chat", {"app": "vllm"}))
        before = await get(subject, "services", "chat")
        version = before["metadata"]["resourceVersion"]
        await merge(subject, "services", "chat", {"metadata": {"labels": {"x": "1"}}})

        answers = [
            await merge(
                subject, "services", "chat", {"metadata": {"resourceVersion": version, "labels": {"x": "2"}}}
            ),
            await json_patch(
                subject,
                "services",
                "chat",
                {"op": "add", "path": "/metadata/resourceVersion", "value": version},
                {"op": "add", "path": "/metadata/labels", "value": {"x": "2"}},
            ),
        ]

        assert [(answer.status_code, answer.json()["reason"]) for answer in answers] == [
            (409, "Conflict")
        ] * 2
        assert (await get(subject, "services", "chat"))["metadata"]["labels"] == {"x": "1"}

    async def test_a_json_patch_is_applied_whole_or_not_at_all(self, subject: Subject) -> None:
        await create(subject, "services", headless_service("chat", {"app": "vllm"}))
        label = {"op": "add", "path": "/metadata/labels", "value": {"flettner.dev/a": "1"}}

        refused = [
            await json_patch(
                subject, "services", "chat", label, {"op": "test", "path": "/spec/selector/app", "value": "x"}
            ),
            await json_patch(subject, "services", "chat", label, {"op": "remove", "path": "/spec/absent"}),
        ]
        before = await get(subject, "services", "chat")
        await json_patch(subject, "services", "chat", label)
        escaped = {"op": "replace", "path": "/metadata/labels/flettner.dev~1a", "value": "2"}
        made = await json_patch(subject, "services", "chat", escaped)

        assert [response.status_code for response in refused] == [422, 422]
        assert "labels" not in before["metadata"]
        assert made.json()["metadata"]["labels"] == {"flettner.dev/a": "2"}

    async def test_an_invalid_deployment_is_refused(self, subject: Subject) -> None:
        wrong = deployment("wrong", replicas=0)
        wrong["spec"]["selector"] = {"matchLabels": {"app": "other"}}
        await create(subject, "deployments", deployment("vllm", replicas=0))

        answers = [
            await create(subject, "deployments", wrong),
            await merge(subject, "deployments", "vllm", {"spec": {"replicas": -1}}),
            await merge(
                subject, "deployments", "vllm", {"spec": {"selector": {"matchLabels": {"app": "other"}}}}
            ),
        ]

        assert [answer.status_code for answer in answers] == [422, 422, 422]

    async def test_a_deletion_may_ask_for_a_certain_object(self, subject: Subject) -> None:
        await create(subject, "services", headless_service("chat", {"app": "vllm"}))
        url = path(subject, "services", "chat")
        body = {"preconditions": {"uid": "another"}}

        refused = await subject.http.request("DELETE", url, json=body)
        done = await subject.http.delete(url)

        assert (refused.status_code, done.status_code) == (409, 200)

    async def test_lists_are_selected_by_labels_and_fields(self, subject: Subject) -> None:
        for name, labels in {"a": {"tier": "x"}, "b": {"tier": "y"}, "c": {}}.items():
            body = {"metadata": {"name": name, "labels": {"of": "this", **labels}}}
            await create(subject, "configmaps", body)

        async def names(**query: str) -> list[str]:
            answer = await subject.http.get(path(subject, "configmaps"), params=query)
            return [item["metadata"]["name"] for item in answer.json()["items"]]

        assert await names(labelSelector="of=this") == ["a", "b", "c"]
        assert await names(labelSelector="of=this,tier in (x,y)") == ["a", "b"]
        assert await names(labelSelector="of=this,tier!=x") == ["b", "c"]
        assert await names(labelSelector="of=this,!tier") == ["c"]
        assert await names(labelSelector="tier", fieldSelector="metadata.name=b") == ["b"]
