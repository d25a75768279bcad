"""The operator's side: how pods request NPUs. Berth's default allocator chooses them."""

from typing import Final

from berth_api.request import Kind
from berth_operator.core.plugins import DevicePlugin

NPU: Final = DevicePlugin(
    kind=Kind(
        name="npu",
        # The first name requests whole NPUs; the second requests hundredths of one, or several whole ones.
        resources={"example.com/npu": 1, "example.com/npu-core": 100},
    )
)
