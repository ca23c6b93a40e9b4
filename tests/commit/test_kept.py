"""The list of a version's files: it finds single files, and notices damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.commit.kept import FileList, KeptFile, KeptFiles
from inlay.errors import CorruptJournalError

_names = st.text(st.sampled_from('ab,[]"\\\n é\udcff'), min_size=1, max_size=4)
_kept = st.builds(
    KeptFile, st.sampled_from(["0", "1"]), st.integers(0, 9), st.integers(-5, 2**70), st.none(), st.integers(0, 9)
)


@given(st.dictionaries(_names, _kept), st.lists(_names))
def test_a_list_has_the_files_that_were_written(files: KeptFiles, others: list[str]) -> None:
    found = FileList(FileList.dump(files), "1.all")
    assert found.all() == files
    wanted = [*files, *others]
    assert found.find(wanted) == files
    assert found.find(others) == {path: files[path] for path in others if path in files}


@pytest.mark.parametrize("damage", [b"", b"7", b"\n"])
def test_a_damaged_list_is_refused(damage: bytes) -> None:
    content = FileList.dump({"a": KeptFile("1", 2, 3, 4, 5)})
    with pytest.raises(CorruptJournalError, match="checksum does not match"):
        FileList(content[:-2] + damage, "1.all")


@pytest.mark.parametrize(("path", "link"), [("../a", "1"), ("/a", "1"), ("a", "../1")])
def test_a_list_with_paths_outside_the_dataset_is_refused(path: str, link: str) -> None:
    found = FileList(FileList.dump({path: KeptFile(link, 2, 3, 4, 5)}), "1.all")
    for read in (found.all, lambda: found.find([path])):
        with pytest.raises(CorruptJournalError, match="unsafe"):
            read()
