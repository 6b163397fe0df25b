"""GPUs through the real pynvml and a worker process, against a small libnvidia-ml.so.1 of our own."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kernpool_agent.errors import GpuError
from kernpool_agent.gpu import library
from kernpool_agent.gpu.client import GpuClient
from kernpool_agent.gpu.names import short_name

SOURCE = Path(__file__).parents[1] / "fakes" / "nvml.c"


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that holds our libnvidia-ml.so.1."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("building the fake libnvidia-ml needs a C compiler")
    target = tmp_path_factory.mktemp("nvml") / library.LIBRARY
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(target), str(SOURCE)], check=True)
    return target.parent


Settings = Callable[[str], None]


@pytest.fixture
def machine(fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A machine with our NVML; call it with settings for the next answers."""
    settings = tmp_path / "nvml.settings"
    settings.write_text("")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_library))
    monkeypatch.setenv("KP_FAKE_NVML", str(settings))
    return lambda text: (settings.write_text(text), None)[1]


@pytest.fixture
async def client() -> AsyncIterator[GpuClient]:
    """A client whose worker is gone at the end."""
    client = GpuClient(call_timeout_s=20)
    yield client
    await client.close()


async def test_gpus_are_listed_with_their_names_and_memory(machine: Settings, client: GpuClient) -> None:
    """The agent starts on a node with two H100."""
    machine("count 2\n")
    found = await client.inventory()
    assert [(g.index, g.name, g.memory_mib, g.healthy) for g in found.gpus] == [
        (0, "H100", 81920, True),
        (1, "H100", 81920, True),
    ]
    assert found.gpus[1].uuid == "GPU-00000000-0000-0000-0000-000000000001"
    assert found.driver == "595.45.04"
    assert found.problems == ()


async def test_a_gpu_that_falls_off_the_bus_is_unhealthy_and_named(machine: Settings, client: GpuClient) -> None:
    """XID 79: NVML still counts the GPU but says that it is lost."""
    machine("fail memory 15\n")
    found = await client.inventory()
    assert [g.healthy for g in found.gpus] == [True, False]
    assert found.problems == ("GPU 1: memory_bytes: GPU is lost",)


async def test_what_a_card_does_not_have_is_no_fault(machine: Settings, client: GpuClient) -> None:
    """A card with coherent memory says Not Supported; an old library lacks a function: neither is an error."""
    machine("fail memory 3\n")
    found = await client.inventory()
    assert [g.healthy for g in found.gpus] == [True, True]
    assert found.problems == ()
    sample = (await client.sample())[1]
    assert sample.readings["memory_used_bytes"].unsupported
    assert sample.readings["temperature_celsius"].unsupported
    assert sample.readings["utilization_ratio"].value == 0.5


async def test_a_driver_that_hangs_costs_a_worker_and_not_the_agent(machine: Settings) -> None:
    """A wedged GPU: ioctls never return. The agent goes on, says so, and asks again later."""
    client = GpuClient(call_timeout_s=2)
    machine("hang uuid\n")
    found = await client.inventory()
    assert found.gpus == ()
    assert found.problems == ("the NVIDIA driver did not answer within 2 s; its worker was killed",)
    assert client.workers_killed == 1
    machine("")
    assert len((await client.inventory()).gpus) == 2
    assert client.workers_started == 2
    await client.close()


async def test_a_library_that_crashes_takes_only_its_worker_along(machine: Settings, client: GpuClient) -> None:
    """A driver update under a running agent: the library and the kernel module do not fit each other."""
    machine("die name\n")
    found = await client.inventory()
    assert "the GPU worker died" in found.problems[0]
    machine("die utilization\n")
    with pytest.raises(GpuError):
        await client.sample()
    machine("")
    assert len((await client.inventory()).gpus) == 2


async def test_a_library_without_a_driver_means_no_gpus_and_says_why(machine: Settings, client: GpuClient) -> None:
    """A container image with CUDA on a node without a GPU."""
    machine("init 9\n")
    found = await client.inventory()
    assert found.gpus == ()
    assert found.problems == ("GPUs cannot be listed: NVML says Driver Not Loaded",)


async def test_without_the_library_no_worker_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: GpuClient
) -> None:
    """Most nodes have no GPU: they must not pay 15 MB for a worker that can say nothing."""
    if library.present({}):
        pytest.skip("this machine has a real libnvidia-ml.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert (await client.inventory()).gpus == ()
    assert client.workers_started == 0


async def test_a_call_that_is_cancelled_does_not_answer_the_next_one(machine: Settings, client: GpuClient) -> None:
    """The agent stops waiting in the midst of a call; the late answer must not be taken for another's."""
    machine("hang name\n")
    call = asyncio.create_task(client.inventory())
    await asyncio.wait([call], timeout=0.5)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    machine("")
    assert len((await client.inventory()).gpus) == 2


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000-Ada"),
        ("Quadro RTX 6000", "RTX6000"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("Strange Card", "Strange-Card"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_product_names_become_the_names_people_write(product: str, name: str) -> None:
    """`accelerators: H100:8` must find NVIDIA H100 80GB HBM3."""
    assert short_name(product) == name
