"""`max_deleted`: a merge that would delete more rows is refused before it writes."""

import numpy as np
import pytest

import inlay
from inlay.errors import DeletionLimitError, InvalidArgumentError
from tests import lake


@pytest.mark.parametrize(
    ("limit", "passes"), [(29, True), (28, False), (0.29, True), (0.2899, False), (1.0, True), (0, False)]
)
@pytest.mark.parametrize("strategy", ["full_merge", "delete", "upsert"])
def test_exactly_the_limit_passes(tmp_path, engine, strategy, limit, passes):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(60)), "b.parquet": lake.table(range(60, 100))})
    if strategy == "upsert":
        source = lake.table(range(29), op=["d"] * 29)
    else:
        source = lake.table(range(29, 100) if strategy == "full_merge" else range(29))
    options = {"max_deleted": limit, "operation_column": "op" if strategy == "upsert" else None, "engine": engine}
    before = lake.photograph(path)
    for function in (inlay.plan_merge, inlay.merge):
        if passes:
            assert function(source, path, strategy, "id", **options).deleted == 29
            continue
        with pytest.raises(DeletionLimitError, match="29 of 100 rows would be deleted") as caught:
            function(source, path, strategy, "id", **options)
        assert f"max_deleted={limit} allows 28" in caught.value.message or limit == 0
        assert lake.photograph(path) == before


def test_a_deletion_by_condition_has_a_limit_too(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(10)), "b.parquet": lake.table(range(10, 20))})
    before = lake.photograph(path)
    for function in (inlay.plan_delete, inlay.delete):
        with pytest.raises(DeletionLimitError, match="5 of 20 rows would be deleted"):
            function(path, "id < 5", max_deleted=0.2, engine=engine)
        with pytest.raises(InvalidArgumentError, match="Invalid max_deleted"):
            function(path, "id < 5", max_deleted=-1, engine=engine)
    assert lake.photograph(path) == before
    assert inlay.delete(path, "id < 5", max_deleted=5, engine=engine).deleted == 5


def test_an_empty_full_merge_tells_how_many_rows_it_deletes(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    with pytest.raises(DeletionLimitError, match="2 of 2 rows"):
        inlay.merge(lake.table([]), path, "full_merge", "id", max_deleted=0.99)
    result = inlay.merge(lake.table([]), path, "full_merge", "id")
    assert result.deleted == 2
    assert "2 deleted" in repr(result)


@pytest.mark.parametrize("limit", [np.int64(1), np.uint8(1), np.float64(0.5), np.float32(0.5), np.float16(0.5)])
def test_numbers_of_numpy_are_limits(tmp_path, limit):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    shown = "1" if isinstance(limit, np.integer) else "0.5"
    for function in (inlay.plan_delete, inlay.delete):
        with pytest.raises(DeletionLimitError, match=f"max_deleted={shown} allows 1"):
            function(path, "id < 3", max_deleted=limit)
    with pytest.raises(DeletionLimitError, match=f"max_deleted={shown} allows 1"):
        inlay.merge({"id": [1, 2]}, path, "delete", "id", max_deleted=limit)
    assert inlay.merge({"id": [1]}, path, "delete", "id", max_deleted=limit).deleted == 1


@pytest.mark.parametrize("limit", [-1, 1.5, -0.1, float("nan"), True, np.True_, np.float64("nan"), np.int8(-1), "5"])
def test_invalid_limits_are_refused(tmp_path, limit):
    with pytest.raises(InvalidArgumentError, match="Invalid max_deleted"):
        inlay.merge(lake.table([]), str(tmp_path / "d"), "full_merge", "id", max_deleted=limit)


def test_a_missing_dataset_has_no_rows_to_delete(tmp_path):
    assert inlay.merge(lake.table([1]), str(tmp_path / "d"), "full_merge", "id", max_deleted=0.0).inserted == 1
