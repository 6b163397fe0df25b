"""Task files as people write them: what is taken, what is refused, and where the finger points."""

import pytest

from kernpool.spec import Demand, SpecError, Task, load_task, parse_task
from kernpool.spec.loader import unbuilt_problems


def problems_of(text: str | bytes) -> list[tuple[int, int, str, str]]:
    with pytest.raises(SpecError) as caught:
        parse_task(text)
    return [(p.line, p.column, p.key, p.message) for p in caught.value.problems]


REFUSED = [
    # text, line, column, key, a part of the message
    ("name: 3", 1, 1, "name", "expected a text, found 3"),
    ("run: [a]", 1, 1, "run", "expected a text"),
    ("run: x\nnum_nodes: '2'", 2, 1, "num_nodes", "expected a whole number"),
    ("run: x\nnum_nodes: 0", 2, 1, "num_nodes", "greater than or equal to 1"),
    ("resorces: {}", 1, 1, "resorces", "did you mean `resources`"),
    ("experimental: {}", 1, 1, "experimental", "unknown key"),
    ("run: a\n\nrun: b", 3, 1, "run", "stands already in line 1"),
    ("resources:\n  cpus: 1\n  cpus: 2", 3, 3, "resources.cpus", "stands already in line 2"),
    (b"run: x\nname: \xe9", 2, 7, "", "not UTF-8"),
    ("", 1, 1, "", "the file is empty"),
    ("- run", 1, 1, "", "expected a map"),
    ("run: 'a\nb: c", 2, 5, "", "not valid YAML"),
    ("run: \x07", 1, 6, "", "not allowed in YAML"),
    ("? {a: b}\n: c", 1, 3, "", "a key must be plain text"),
    ("resources: 5", 1, 1, "resources", "expected a map"),
    ("resources:\n  cpu: 4", 2, 3, "resources.cpu", "did you mean `cpus`"),
    ("resources:\n  cpus: -1", 2, 3, "resources.cpus", "above 0"),
    ("resources:\n  memory: lots", 2, 3, "resources.memory", "16+"),
    ("resources:\n  disk_size: 1500MB", 2, 3, "resources.disk_size", "256GB"),
    ("resources:\n  ports: 99999", 2, 3, "resources.ports", "65535"),
    ("resources:\n  accelerators: H100:0", 2, 3, "resources.accelerators", "above 0"),
    ("resources:\n  gpus: H100:0", 2, 3, "resources.gpus", "above 0"),
    ("resources:\n  accelerators: [{A: 1}]", 2, 3, "resources.accelerators", "expected an accelerator"),
    ("resources:\n  autostop: 30s", 2, 3, "resources.autostop", "30m"),
    ("resources:\n  priority: 1001", 2, 3, "resources.priority", "1000"),
    ("resources:\n  disk_tier: fast", 2, 3, "resources.disk_tier", "'low', 'medium'"),
    ("resources:\n  any_of:\n    - {acc: 3}", 3, 8, "resources.any_of[0].acc", "unknown key"),
    ("resources:\n  gpus: H100\n  accelerators: H100", 1, 1, "resources", "another name"),
    ("resources:\n  any_of: [{cpus: 2}]\n  ordered: [{cpus: 2}]", 1, 1, "resources", "exclude each other"),
    ("resources:\n  accelerators: [A, B]\n  any_of: [{cpus: 2}]", 1, 1, "resources", "exclude each other"),
    ("resources:\n  accelerators: {A: 1, B: 1}\n  ordered: [{cpus: 2}]", 1, 1, "resources", "exclude each other"),
    ("resources: {infra: aws, region: us-east-1}", 1, 1, "resources", "give it alone"),
    ("envs: [a]", 1, 1, "envs", "expected a map"),
    ("envs:\n  1A: x", 1, 1, "envs", "not a variable's name"),
    ("run: a\n---\nrun: b", 3, 1, "", "pipelines"),
    ("name: g\nexecution: parallel\n---\nname: a\nrun: b", 4, 1, "", "job groups"),
    ("service: {readiness_probe: /}\npool: {workers: 1}", 1, 1, "", "exclude each other"),
]


@pytest.mark.parametrize(("text", "line", "column", "key", "message"), REFUSED)
def test_a_wrong_file_is_refused_with_the_place_and_the_reason(
    text: str | bytes, line: int, column: int, key: str, message: str
) -> None:
    """Someone mistypes a task file: the answer names line, column, key and what was expected."""
    found = problems_of(text)
    assert [(p[0], p[1], p[2]) for p in found] == [(line, column, key)], found
    assert message in found[0][3]


def test_all_problems_of_a_file_are_told_at_once() -> None:
    """Fixing one mistake only to be shown the next wastes a person's time."""
    assert [p[2] for p in problems_of("name: 1\nrun: 2\nresources:\n  cpus: x\n")] == ["name", "resources.cpus", "run"]


DEMANDS = [
    ("run: x", [Demand()]),
    ("resources:", [Demand()]),
    ("resources: {cpus: 4, memory: 16}", [Demand(cpus=4, memory_gib=16)]),
    ('resources: {cpus: "4+", memory: 16+}', [Demand(4, True, 16, True)]),
    ("resources: {cpus: 0.5, memory: 512MB}", [Demand(cpus=0.5, memory_gib=0.5)]),
    ("resources: {disk_size: 1TB}", [Demand(disk_gib=1024)]),
    ("resources: {accelerators: H100}", [Demand(accelerators={"H100": 1})]),
    ("resources: {accelerators: H100:8}", [Demand(accelerators={"H100": 8})]),
    ("resources: {accelerators: [A100:2, H100]}", [Demand(accelerators={"A100": 2}), Demand(accelerators={"H100": 1})]),
    ("resources: {accelerators: {H100:8, A100:8}}", [Demand(accelerators={n: 8}) for n in ("H100", "A100")]),
    (
        "resources: {accelerators: {H100: 8, A100: 4}}",
        [Demand(accelerators={"H100": 8}), Demand(accelerators={"A100": 4})],
    ),
    (
        "resources:\n  memory: 8+\n  any_of:\n    - {cpus: 2, gpus: L4}\n    - {memory: 4}",
        [Demand(2, False, 8, True, 0, {"L4": 1}), Demand(memory_gib=4)],
    ),
    ("x: &x {cpus: 2}\nresources:\n  <<: *x\n  memory: 1", None),
    ("resources: &r\n  cpus: 2\n  memory: 1", [Demand(cpus=2, memory_gib=1)]),
]


@pytest.mark.parametrize(("text", "demands"), [row for row in DEMANDS if row[1] is not None])
def test_resources_are_read_in_every_form_of_skypilots_files(text: str, demands: list[Demand]) -> None:
    """Hundreds of public task files use these spellings; each must mean the same here."""
    assert parse_task(text).demands() == demands


def test_labels_of_one_alternative_do_not_leak_into_the_next() -> None:
    """SkyPilot merges them into all alternatives by mistake; a job would carry labels that it never asked for."""
    task = parse_task("resources:\n  labels: {a: '1'}\n  any_of: [{labels: {b: '2'}}, {cpus: 1}]")
    assert [fields.labels for fields in task.resources.alternatives()] == [{"a": "1", "b": "2"}, {"a": "1"}]


def test_environment_values_become_text_as_in_skypilot() -> None:
    """`DEBUG: true` and `PORT: 8080` are common; null must be given by the caller."""
    task = parse_task("run: x\nenvs: {A: 1, B: true, C: 1.5, D: null, E: ''}\nsecrets: {T: null}")
    assert task.envs == {"A": "1", "B": "True", "C": "1.5", "D": None, "E": ""}
    assert task.missing_variables() == ["D", "T"]
    filled = task.with_environment({"D": "d"}, {"T": "t"})
    assert filled.missing_variables() == []
    assert filled.envs["A"] == "1"


def test_a_secret_is_not_in_the_repr_of_a_task() -> None:
    """Tasks end up in logs and tracebacks."""
    assert "hunter2" not in repr(parse_task("run: x\nsecrets: {T: hunter2}"))


UNBUILT = [
    ("workdir: .", "workdir"),
    ("file_mounts: {/data: s3://bucket}", "file_mounts"),
    ("service: {readiness_probe: /, replicas: 1}", "service"),
    ("secrets: [secrets:HF]", "secrets"),
    ("resources: {use_spot: true}", "resources.use_spot"),
    ("resources: {image_id: 'docker:ubuntu'}", "resources.image_id"),
    ("resources: {accelerators: H100:0.5}", "resources.accelerators"),
    ("resources: {accelerators: 80GB+}", "resources.accelerators"),
    ("resources: {any_of: [{infra: aws}, {cpus: 1}]}", "resources.any_of[0].infra"),
    ("resources: {any_of: [prod-us-west, burst]}", "resources.any_of[0]"),
    ("resources: {autostop: 10m}", "resources.autostop"),
    ("config: {docker: {run_options: []}}", "config"),
]


@pytest.mark.parametrize(("text", "key"), UNBUILT)
def test_what_is_not_built_yet_is_said_by_name(text: str, key: str) -> None:
    """A file that asks for spot instances must not run on-demand without a word."""
    found = unbuilt_problems(parse_task(text))
    assert found[0].key == key
    assert "not built yet" in found[0].message


def test_empty_blocks_ask_for_nothing() -> None:
    """Templates often leave `file_mounts:` or `use_spot: false` in place."""
    task = parse_task("run: x\nfile_mounts:\nconfig: {}\nresources: {use_spot: false, infra: '*'}")
    assert task.unbuilt() == {}


def test_a_document_survives_the_way_to_the_coordinator() -> None:
    """The client sends what it read; the coordinator must read the same."""
    text = "name: n\nnum_nodes: 2\nrun: x\nenvs: {A: 1}\nresources: {cpus: 4+, accelerators: {H100:8, A100:8}}"
    task = parse_task(text)
    again = Task.model_validate(task.to_document())
    assert again.demands() == task.demands()
    assert again.to_document() == task.to_document()
    assert task.replace(num_nodes=3).num_nodes == 3


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a [x]\n" + "".join(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}' if i else '*a'] * 10)}]\n" for i in range(12)),
        "x: &x [*x]",
        "[" * 5000,
        "x: &x {<<: *x}",
        "run: " + "a" * (1 << 21),
    ],
    ids=["billion laughs", "a list in itself", "deep nesting", "a merge of itself", "too long"],
)
def test_a_bomb_is_refused_quickly(bomb: str) -> None:
    """A hostile file must not take the coordinator's memory."""
    assert len(problems_of(bomb)) == 1


def test_a_file_error_names_the_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """`kernpool launch train.yaml` prints FILE:LINE:COLUMN, which editors jump to."""
    file = tmp_path / "train.yaml"
    file.write_text("rum: x")
    with pytest.raises(SpecError, match=r"train.yaml:1:1: rum: unknown key: did you mean `run`\?"):
        load_task(file)
