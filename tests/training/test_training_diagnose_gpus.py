"""What nvidia-smi and NCCL write, in the formats of several releases, and what is read out of it.

The texts are written after the documented formats and public outputs of the releases that are named; they are no
recordings of machines of this project.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from training.diagnose import gpus, nccl
from training.diagnose.__main__ import main
from training.launch import exit_codes

HEAD = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "{dtd}">\n<nvidia_smi_log>\n'
# Driver 470 on a V100: one kind of memory error, "throttle reasons", power_readings.
XML_470 = (
    HEAD.format(dtd="nvsmi_device_v11.dtd")
    + """
<driver_version>470.199.02</driver_version><cuda_version>11.4</cuda_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:00:1E.0"><product_name>Tesla V100-SXM2-16GB</product_name><minor_number>0</minor_number>
<clocks_throttle_reasons>
  <clocks_throttle_reason_gpu_idle>Not Active</clocks_throttle_reason_gpu_idle>
  <clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown>
  <clocks_throttle_reason_hw_thermal_slowdown>Active</clocks_throttle_reason_hw_thermal_slowdown>
</clocks_throttle_reasons>
<fb_memory_usage><total>16160 MiB</total><used>1042 MiB</used></fb_memory_usage>
<utilization><gpu_util>97 %</gpu_util></utilization>
<ecc_errors><volatile>
  <single_bit><device_memory>9</device_memory><total>9</total></single_bit>
  <double_bit><device_memory>2</device_memory><total>2</total></double_bit>
</volatile></ecc_errors>
<retired_pages><pending_blacklist>Yes</pending_blacklist></retired_pages>
<temperature><gpu_temp>88 C</gpu_temp></temperature>
<power_readings><power_draw>251.32 W</power_draw><power_limit>300.00 W</power_limit></power_readings>
</gpu></nvidia_smi_log>
"""
)
# Driver 535 on an A100: memory errors by kind of memory, row remapper, instant power.
XML_535 = (
    HEAD.format(dtd="nvsmi_device_v12.dtd")
    + """
<driver_version>535.183.01</driver_version><cuda_version>12.2</cuda_version>
<gpu id="00000000:10:1C.0"><product_name>NVIDIA A100-SXM4-40GB</product_name>
<clocks_throttle_reasons><clocks_throttle_reason_gpu_idle>Active</clocks_throttle_reason_gpu_idle>
  <clocks_throttle_reason_sw_power_cap>Not Active</clocks_throttle_reason_sw_power_cap></clocks_throttle_reasons>
<fb_memory_usage><total>40960 MiB</total><reserved>600 MiB</reserved><used>4 MiB</used></fb_memory_usage>
<utilization><gpu_util>0 %</gpu_util></utilization>
<ecc_errors><volatile><sram_correctable>0</sram_correctable><sram_uncorrectable>1</sram_uncorrectable>
  <dram_correctable>3</dram_correctable><dram_uncorrectable>2</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
<temperature><gpu_temp>34 C</gpu_temp></temperature>
<gpu_power_readings><power_draw>51.10 W</power_draw>
  <current_power_limit>400.00 W</current_power_limit></gpu_power_readings>
</gpu></nvidia_smi_log>
"""
)
# Driver 580 on H100s: "event reasons", errors of SRAM by how they were found; the second GPU does not answer.
XML_580 = (
    HEAD.format(dtd="nvsmi_device_v13.dtd")
    + """
<driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version>
<gpu id="00000000:53:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name>
<clocks_event_reasons><clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
  <clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle></clocks_event_reasons>
<fb_memory_usage><total>81559 MiB</total><used>71000 MiB</used></fb_memory_usage>
<utilization><gpu_util>100 %</gpu_util></utilization>
<ecc_errors><volatile><sram_correctable>0</sram_correctable>
  <sram_uncorrectable_parity>0</sram_uncorrectable_parity><sram_uncorrectable_secded>0</sram_uncorrectable_secded>
  <dram_correctable>0</dram_correctable><dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors>
<temperature><gpu_temp>61 C</gpu_temp></temperature>
<gpu_power_readings><average_power_draw>690.00 W</average_power_draw><instant_power_draw>698.51 W</instant_power_draw>
  <current_power_limit>700.00 W</current_power_limit></gpu_power_readings>
</gpu>
<gpu id="00000000:64:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name>
<fb_memory_usage><total>[GPU is lost]</total><used>[GPU is lost]</used></fb_memory_usage>
<ecc_errors><volatile><dram_uncorrectable>N/A</dram_uncorrectable></volatile></ecc_errors>
<temperature><gpu_temp>[GPU is lost]</gpu_temp></temperature>
</gpu></nvidia_smi_log>
"""
)


@pytest.mark.parametrize(
    ("text", "driver", "expected", "problems"),
    [
        (
            XML_470,
            "470.199.02",
            {"uncorrected": 2, "power": 251.32, "power_limit": 300.0, "temperature": 88.0, "memory_total": 16160.0},
            [
                "GPU 0 has 2 memory errors that were not corrected: reset or replace it",
                "GPU 0 has memory that waits for replacement: reset it while no program runs",
                "GPU 0 is slowed down by the hardware (heat or power)",
                "GPU 0 is slowed down by the hardware, for heat",
                "GPU 0 is at 88 degrees Celsius: look at the cooling",
            ],
        ),
        (
            XML_535,
            "535.183.01",
            {"uncorrected": 3, "power": 51.1, "power_limit": 400.0, "throttled": ("gpu_idle",)},
            [
                "GPU 0 has 3 memory errors that were not corrected: reset or replace it",
                "GPU 0 has memory that waits for replacement: reset it while no program runs",
            ],
        ),
        (
            XML_580,
            "580.95.05",
            {"uncorrected": 0, "power": 698.51, "utilization": 100.0, "bus": "00000000:53:00.0"},
            [
                "GPU 0 is slowed down by its power limit",
                "GPU 1 does not answer (total: GPU is lost): reset or replace it",
            ],
        ),
    ],
    ids=["470", "535", "580"],
)
def test_the_xml_of_each_driver(text: str, driver: str, expected: dict[str, Any], problems: list[str]) -> None:
    report = gpus.of_text(text)
    assert report.driver == driver
    assert {name: getattr(report.gpus[0], name) for name in expected} == expected
    assert report.problems() == problems


CSV_UNITS = """\
index, uuid, name, driver_version, pci.bus_id, temperature.gpu, power.draw [W], power.limit [W], utilization.gpu [%], \
memory.used [MiB], memory.total [MiB], ecc.errors.uncorrected.volatile.total
0, GPU-5a, NVIDIA A10G, 550.163.01, 00000000:00:1B.0, 41, 62.20 W, 300.00 W, 12 %, 1024 MiB, 23028 MiB, 0
1, GPU-5b, NVIDIA A10G, 550.163.01, 00000000:00:1C.0, 92, 61.00 W, 300.00 W, 99 %, 2048 MiB, 23028 MiB, 4
"""
CSV_PLAIN = """\
name, temperature.gpu, power.draw [W], ecc.errors.uncorrected.volatile.total, clocks_throttle_reasons.hw_slowdown
NVIDIA GeForce RTX 3090, 55, [N/A], [N/A], Active
NVIDIA RTX A6000, [Unknown Error], [Unknown Error], [Unknown Error], [Unknown Error]
"""


def test_columns_with_units_and_without() -> None:
    report = gpus.of_text(CSV_UNITS)
    assert report.driver == "550.163.01"
    assert (report.gpus[1].memory_used, report.gpus[1].power_limit, report.gpus[1].utilization) == (2048, 300, 99)
    assert report.problems() == [
        "GPU 1 has 4 memory errors that were not corrected: reset or replace it",
        "GPU 1 is at 92 degrees Celsius: look at the cooling",
    ]
    old = gpus.of_text(f"a warning first\n{CSV_PLAIN}")
    assert [(gpu.power, gpu.uncorrected) for gpu in old.gpus] == [(None, None)] * 2
    assert old.problems() == [
        "GPU 0 is slowed down by the hardware (heat or power)",
        "GPU 1 does not answer (Unknown Error): reset or replace it",
        "different GPUs in one machine: NVIDIA GeForce RTX 3090, NVIDIA RTX A6000",
    ]


@pytest.mark.parametrize("text", ["", "No devices were found", "<nvidia_smi_log><gpu>"])
def test_what_is_no_output_of_nvidia_smi(text: str) -> None:
    with pytest.raises(gpus.GpuError, match="no output of"):
        gpus.of_text(text)


def test_xid_errors_of_the_kernel_log() -> None:
    log = """
[ 1.1] NVRM: Xid (PCI:0000:59:00): 31, pid=12, name=python3, Ch 00000008, intr 00000000. MMU Fault
[ 2.1] NVRM: Xid (PCI:0000:83:00): 119, pid=2710030, name=nvidia-smi, Timeout waiting for RPC from GSP!
[ 2.2] NVRM: Xid (PCI:0000:83:00): 119, pid=2710030, name=nvidia-smi, Timeout waiting for RPC from GSP!
[ 3.1] NVRM: Xid (PCI:0000:01:00 GPU-I:05): 95, pid=7194, Uncontained: LTC TAG (0x2). RST: Yes, D-RST: No
[ 4.1] NVRM: Xid (PCI:0000:01:00): 999, something new
"""
    assert gpus.xids(log) == [
        "Xid 119 of the GPU at 0000:83:00: the GPU's system processor does not answer: reset the GPU",
        "Xid 95 of the GPU at 0000:01:00: an uncontained memory error: reset the GPU",
        "Xid 999 of the GPU at 0000:01:00: see the list of Xid errors of NVIDIA",
    ]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file, kernel = tmp_path / "smi.xml", tmp_path / "dmesg"
    file.write_text(XML_535.replace("<dram_uncorrectable>2", "<dram_uncorrectable>0").replace(">Yes<", ">No<"))
    kernel.write_text("NVRM: Xid (PCI:0000:10:1C): 48, pid=1, DBE")
    assert main(["gpus", "--from", str(file)]) == exit_codes.FAILED  # one error of SRAM is left
    file.write_text(file.read_text().replace("<sram_uncorrectable>1", "<sram_uncorrectable>0"))
    assert main(["gpus", "--from", str(file)]) == exit_codes.FINISHED
    assert "GPU 0 NVIDIA A100-SXM4-40GB 00000000:10:1C.0: 34 C, 51.1 W" in capsys.readouterr().out
    assert main(["gpus", "--from", str(file), "--kernel-log", str(kernel), "--json"]) == exit_codes.FAILED
    document = json.loads(capsys.readouterr().out)
    assert document["problems"] == ["Xid 48 of the GPU at 0000:10:1C: an uncorrectable memory error"]
    assert main(["gpus", "--from", str(tmp_path / "none")]) == exit_codes.USAGE

    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["gpus"]) == exit_codes.USAGE
    assert "there is no nvidia-smi" in capsys.readouterr().err
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate with the driver'\nexit 9\n"
    )
    program.chmod(0o755)
    assert main(["gpus"]) == exit_codes.USAGE
    assert "nvidia-smi failed (9): NVIDIA-SMI has failed" in capsys.readouterr().err


def test_an_nvidia_smi_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", 60)

    monkeypatch.setattr(gpus.shutil, "which", lambda _: "/usr/bin/nvidia-smi")  # type: ignore[attr-defined]
    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(gpus.GpuError, match="has not answered for 60 s: the driver hangs"):
        gpus.ask()


# EFA with NCCL 2.12 and 2.27, InfiniBand with 2.20, TCP with 2.27.
OLD_EFA = """\
pod-0:21:21 [0] NCCL INFO NET/OFI Selected Provider is efa (found 1 nics)
pod-0:21:21 [0] NCCL INFO Using network AWS Libfabric
NCCL version 2.12.7+cuda11.4
pod-0:21:40 [0] NCCL INFO Channel 00/0 : 0[101c0] -> 1[101c0] [receive] via NET/AWS Libfabric/0
"""
NEW_EFA = """\
pod-0:172:172 [0] NCCL INFO NCCL version 2.27.7+cuda12.8
pod-0:172:172 [0] NCCL INFO NET/Plugin: Loaded net plugin Libfabric (v11)
pod-0:172:172 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)
pod-0:172:172 [0] NCCL INFO Using network Libfabric
pod-0:172:190 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA
pod-0:172:190 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
"""
INFINIBAND = """\
host:7:19 [0] NCCL INFO NCCL version 2.20.5+cuda12.4
host:7:19 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.4<0>
host:7:19 [0] NCCL INFO Using network IB
host:7:19 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
"""
SOCKETS = """\
node-0:152:386 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
node-0:152:386 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
node-0:152:386 [0] NCCL INFO NET/IB : No device found.
node-0:152:386 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.4.51<0>
node-0:152:386 [0] NCCL INFO Initialized NET plugin Socket
node-0:152:386 [0] NCCL INFO Using network Socket
node-0:152:390 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
"""


def test_which_transport_was_chosen() -> None:
    old = nccl.transport(OLD_EFA.splitlines())
    assert (old.kind, old.version, old.detail) == ("efa", "2.12.7", "efa, 1 devices")
    new = nccl.transport(NEW_EFA.splitlines())
    assert (new.kind, new.version, new.detail, new.direct) == ("efa", "2.27.7", "efa, 32 devices", True)
    assert new.connections == {"NET/Libfabric": 1, "P2P/CUMEM": 1}
    assert new.warnings == ()
    infiniband = nccl.transport(INFINIBAND.splitlines())
    assert (infiniband.kind, infiniband.version, infiniband.direct) == ("infiniband", "2.20.5", False)
    assert "no GPUDirect RDMA" in infiniband.warnings[0]
    sockets = nccl.transport(SOCKETS.splitlines())
    assert (sockets.kind, sockets.version, sockets.detail) == ("sockets", "2.27.3", "[0]eth0:10.0.4.51<0>")
    assert "(it found no InfiniBand device and no plugin)" in sockets.warnings[0]
    slingshot = nccl.transport(
        ["x NCCL INFO NET/OFI Selected Provider is cxi (found 2 nics)", "x NCCL INFO Using network AWS Libfabric"]
    )
    assert slingshot.kind == "cxi"


def test_the_command_says_the_transport(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.log"
    file.write_text(NEW_EFA)
    assert main(["nccl", str(file)]) == exit_codes.FINISHED
    assert capsys.readouterr().out.startswith("transport: efa (efa, 32 devices), NCCL 2.27.7\nconnections: 1 by NET")
    file.write_text(SOCKETS)
    assert main(["nccl", "--json", str(file)]) == exit_codes.FAILED
    assert json.loads(capsys.readouterr().out)["kind"] == "sockets"
    file.write_text("nothing of the kind")
    assert main(["nccl", str(file)]) == exit_codes.FAILED
    assert "set NCCL_DEBUG=INFO" in capsys.readouterr().out
