"""Short columns are inferred without Arrow. The result must not depend on that."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.text import inference

_EDGES = (
    "", " ", "0", "-0", "00", "07", "5.", ".5", "-.5", "-", ".", "1e5", "+1", "123456789012345", "1234567890123456",
    "99999999999999.9", "0.10", "true", "True ", "nan", "NaN", "-inf", "Infinity", "nano", "x", " x", "_x", "x y", "é",
    "a\nb", "a\n1", "1\n2", "1\n", "\n1", "a\n", "2024-01-02", "01/02/2024", "31/12/2024", "2024-01-02 10:00:00",
)  # fmt: skip
_CELLS = st.lists(st.one_of(st.none(), st.sampled_from(_EDGES), st.text("0123456789.-ax \n", max_size=6)), max_size=6)


@given(_CELLS, st.sampled_from([None, True, False]))
def test_short_columns_are_inferred_like_long_columns(cells: list[str | None], day_first: bool | None) -> None:
    values = pa.array(cells, pa.string())
    found = (inference.infer(values, day_first), inference.why_text(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "_FEW", -1)
        assert found == (inference.infer(values, day_first), inference.why_text(values))
