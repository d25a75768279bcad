"""The operator's side: what NPUs are to pods. How they are chosen is left to Berth."""

from typing import Final

from berth_api.request import Kind
from berth_operator.core.plugins import DevicePlugin

NPU: Final = DevicePlugin(
    kind=Kind(
        name="npu",
        # Pods ask for whole NPUs by the first name, and for hundredths of one, or several, by the second.
        resources={"example.com/npu": 1, "example.com/npu-core": 100},
    )
)
