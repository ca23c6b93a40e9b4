"""Tests of the load page: choose, preview, load and undo."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from inlay.incremental import STRATEGIES
from inlay.server.models import Changes, LoadPlan, PlannedFile
from inlay.web.load.mapping import suggest_columns
from inlay.web.load.plan import rewritten_share, segments
from inlay.web.load.strategy import STRATEGY_CARDS, LoadDraft, default_strategy
from inlay.workspace.key_columns import KeyAdvice
from inlay.workspace.requests import KEYLESS_STRATEGIES
from tests.web.conftest import Visit

EVIL = "<img src=x onerror=alert(1)>"
ORDERS = "".join(f"{number},item {number},{number}.50,open\n" for number in range(1, 61))


# ------------------------------------------------------------------------------------------------- without a browser
def test_strategy_cards_match_the_strategies() -> None:
    assert set(STRATEGY_CARDS) == {*STRATEGIES, *KEYLESS_STRATEGIES}
    words = {"keep": "kept", "replace": "replaced", "insert": "inserted", "skip": "ignored", "delete": "deleted"}
    looks = {"keep": "kept", "replace": "new", "insert": "new", "skip": "skipped", "delete": "deleted"}
    for name, strategy in STRATEGIES.items():
        card = STRATEGY_CARDS[name]
        assert (card.summary, card.needs_key) == (strategy.summary, True)
        assert f"Key in both: {words[strategy.in_both]}." in card.description
        assert f"Only in the source: {words[strategy.only_in_source]}." in card.description
        assert f"Only in the dataset: {words[strategy.only_in_target]}." in card.description
        after = {cell.key: cell.style for cell in card.result}
        effects = (strategy.only_in_target, strategy.in_both, strategy.only_in_source)
        assert after == dict(zip("ABC", (looks[each] for each in effects), strict=True))
        assert [cell.key for cell in card.source].count("B") == 1 + strategy.reduces_source
    assert not any(STRATEGY_CARDS[name].needs_key for name in KEYLESS_STRATEGIES)


def test_request_has_only_the_arguments_of_its_strategy() -> None:
    choices = LoadDraft(upload_id="upld_x", key_columns=["id"], order_by=["at"], rejects_rows=True)
    for name in STRATEGY_CARDS:
        choices.strategy = name
        request = choices.request(dry_run=True)
        request.check()
        assert (request.dry_run, request.on_error) == (True, "quarantine")
        assert list(request.dedup_order_by) == (["at"] if name == "deduplicate" else [])
        assert choices.missing is None
    assert LoadDraft(strategy="append").missing is not None
    assert "key columns" in str(LoadDraft(upload_id="upld_x", strategy="upsert").missing)


@pytest.mark.parametrize("strategy", ["full_merge", "delete"])
def test_a_scope_is_one_column_and_its_values(strategy: str) -> None:
    draft = LoadDraft(upload_id="upld_x", key_columns=["id"], strategy=strategy, scope=" day = 2025-01-01, 2025-01-02 ")
    request = draft.request(dry_run=True)
    assert request.scope == {"day": ["2025-01-01", "2025-01-02"]}
    assert replace(draft, strategy="upsert").request(dry_run=True).scope is None
    assert replace(draft, scope="  ").request(dry_run=True).scope is None
    for text in ("day", "=2025-01-01", "day=", "day=2025-01-01,"):
        assert str(replace(draft, scope=text).missing).startswith("Write the scope as a column and its values")
        assert replace(draft, scope=text, strategy="upsert").missing is None


def test_upsert_is_the_default_if_a_key_is_known() -> None:
    assert default_strategy(KeyAdvice((), (("id",),))) == "upsert"
    assert default_strategy(KeyAdvice((), ())) == "append"


def test_similar_names_of_columns_are_suggested() -> None:
    source = ["id", "Full Name", "order-date", "Order Date", "x"]
    found = suggest_columns(source, ["id", "full_name", "orderDate", "note"])
    assert found == {"id": "id", "Full Name": "full_name", "order-date": "orderDate", "Order Date": None, "x": None}
    assert suggest_columns(["Id", "id"], ["id"]) == {"Id": None, "id": "id"}


def plan_of(files: list[PlannedFile], **more: Any) -> LoadPlan:
    counts = dict.fromkeys(("source_count", "rejected_count", "inserted", "updated", "deleted", "unchanged"), 0)
    changes = Changes(columns=[], inserted=[], updated=[], deleted=[])
    fields: dict[str, Any] = counts | {
        "row_count": 0,
        "version": 1,
        "files_rewritten": 0,
        "bytes_rewritten": 0,
        **counts,
        **more,
    }
    return LoadPlan(dataset_id="data_x", strategy="upsert", files=files, changes=changes, **fields)


def test_segments_are_files_or_operations() -> None:
    def files(number: int, kind: str) -> list[PlannedFile]:
        return [
            PlannedFile(path=f"/d/v1/{n}.parquet", operation=kind, reason="so", rows=1, bytes=10) for n in range(number)
        ]

    few = segments(files(2, "preserved") + files(1, "rewritten"))
    assert [(part.operation, part.bytes) for part in few] == [("preserved", 10), ("preserved", 10), ("rewritten", 10)]
    assert few[2].title == "v1/0.parquet: rewritten, so"
    many = segments(files(1000, "preserved") + files(3, "rewritten"))
    assert [(part.operation, part.bytes, part.title) for part in many] == [
        ("rewritten", 30, "3 files rewritten"),
        ("preserved", 10_000, "1,000 files untouched"),
    ]
    assert (
        rewritten_share(plan_of(files(100, "preserved"), bytes_rewritten=15))
        == "The load rewrites 15 bytes of 1.0 KB (1.5%)."
    )
    assert "none of the existing data (1.0 KB)" in rewritten_share(plan_of(files(100, "preserved")))


# ---------------------------------------------------------------------------------------------------- in a real browser
def made(api: httpx.Client, text: str, label: str = "Orders") -> dict[str, Any]:
    source = {"inline": {"format": "csv", "content": text}}
    answer = api.post("/v1/datasets", json={"label": label, "source": source})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def uploaded(api: httpx.Client, text: str) -> str:
    answer = api.post("/v1/files", content=text.encode(), headers={"Content-Type": "text/csv"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def rows(api: httpx.Client, sql: str) -> list[list[Any]]:
    answer = api.post("/v1/query", json={"sql": sql})
    assert answer.status_code == 200, answer.text
    found: list[list[Any]] = answer.json()["rows"]
    return found


def look(page: Page) -> None:
    page.get_by_role("button", name="Preview changes").click()


@pytest.mark.spark
def test_correction_is_previewed_loaded_and_undone(visit: Visit, api: httpx.Client) -> None:
    label = f"Orders {EVIL}"
    dataset = made(api, f'order_id,name,price,"{EVIL}"\n' + ORDERS, label)
    page = visit.go(f"/datasets/{dataset['id']}/load")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Load rows into {label}")
    expect(page.get_by_role("button", name="Preview changes")).to_be_disabled()
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked()
    expect(page.get_by_role("button", name="order_id unique in the dataset")).to_be_visible()
    visit.shoot("load-begin")
    correction = (
        f'order_id,name,price,"{EVIL}"\n7,item 7,7.50,{EVIL}\n8,item 8,,open\n9,item 9,9.50,open\n99,new,1.00,open\n'
    )
    page.locator("input[type=file]").set_input_files(
        {"name": f"fix {EVIL}.csv", "mimeType": "text/csv", "buffer": correction.encode()}
    )
    first = page.get_by_role("region", name="First rows")
    expect(first.get_by_role("cell", name=EVIL)).to_be_visible()
    expect(first.get_by_role("cell", name="NULL")).to_be_visible()
    visit.shoot("load-chosen")
    look(page)
    expect(page.get_by_role("heading", name="Review the changes")).to_be_visible()
    shown = page.get_by_role("listitem")
    expect(shown.filter(has_text="to be inserted")).to_have_text("1to be inserted")
    expect(shown.filter(has_text="to be updated")).to_have_text("3to be updated, 1 of them unchanged")
    changed = page.get_by_role("region", name="Changed cells")
    expect(changed.locator("tbody")).to_have_text([f"7{EVIL}open{EVIL}", "8price8.5NULL"])
    expect(changed.locator("del")).to_have_text(["open", "8.5"])
    expect(page.get_by_role("region", name="New rows").get_by_role("cell").first).to_have_text("99")
    expect(page.get_by_role("img", name="Files: 1 rewritten, new files")).to_be_visible()
    visit.shoot("load-plan")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Loaded as version 2")).to_be_visible()
    visit.shoot("load-done")
    table = dataset["table_name"]
    assert rows(api, f"SELECT price FROM datasets.{table} WHERE order_id IN (8, 99) ORDER BY order_id") == [
        [None],
        [1.0],
    ]
    page.get_by_role("button", name="Undo and restore version 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.get_by_role("status").filter(has_text="Restored version 1")).to_be_visible()
    assert rows(api, f"SELECT count(*), sum(price) FROM datasets.{table}") == [[60, 1860.0]]
    assert api.get(f"/v1/datasets/{dataset['id']}").json()["version"] == 3


@pytest.mark.long  # short runs check errors of the same form in test_preview.py
@pytest.mark.spark
def test_errors_offer_a_remedy_and_keep_the_choices(visit: Visit, api: httpx.Client) -> None:
    dataset = made(api, "id,name,n\n1,a,1\n2,b,2\n")
    upload_id = uploaded(api, "id,name,n\n1,first,1\n1,second,many\n3,third,3\n3,fourth,4\n")
    page = visit.go(f"/datasets/{dataset['id']}/load?upload={upload_id}")
    expect(page.get_by_text("Invalid rows: 1 of the first 4 rows")).to_be_visible()
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked()
    look(page)
    problem = page.get_by_role("alert")
    bad = problem.locator("tbody tr")
    expect(bad.get_by_role("cell").nth(0)).to_have_text("3")
    expect(bad.get_by_role("cell").nth(2)).to_have_text("many")
    visit.shoot("load-bad-rows")
    problem.get_by_role("button", name="Reject these rows and preview again").click()
    expect(problem).to_contain_text("1 source row repeats a key")
    expect(page.get_by_label("Reject them and load the rest")).to_be_checked()
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked()
    problem.get_by_role("button", name="Keep the last row of each key").click()
    expect(page.get_by_label("Deduplicate", exact=True)).to_be_checked()
    expect(page.get_by_role("listitem").filter(has_text="to be rejected")).to_contain_text("1")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Loaded as version 2")).to_be_visible()
    assert rows(api, f"SELECT id, name FROM datasets.{dataset['table_name']} ORDER BY id") == [
        [1, "first"],
        [2, "b"],
        [3, "fourth"],
    ]
    assert api.get(f"/v1/files/{upload_id}").json()["status"] == "consumed"
    page.goto(f"{visit.url}/datasets/{dataset['id']}/load?upload={upload_id}")
    expect(page.get_by_role("alert")).to_contain_text("already consumed")


@pytest.mark.spark
def test_columns_of_a_file_are_mapped(visit: Visit, api: httpx.Client) -> None:
    dataset = made(api, "id,full_name\n1,ann\n")
    upload_id = uploaded(api, f"ID,Full Name,comment,Land\n1,Ann,{EVIL},\n2,bob,,FR\n")
    page = visit.go(f"/datasets/{dataset['id']}/load?upload={upload_id}")
    expect(page.get_by_label("What Full Name becomes")).to_have_value("full_name")
    expect(page.get_by_text("The dataset lacks 2 columns of the source: comment, Land.")).to_be_visible()
    page.get_by_role("button", name="id unique in the dataset").click()
    expect(page.get_by_text("Choose a column of the dataset for comment.")).to_be_visible()
    expect(page.get_by_role("button", name="Preview changes")).to_be_disabled()
    for name, choice in (("comment", "Ignore this column"), ("Land", "Add as a new column")):
        page.get_by_label(f"What {name} becomes").click()
        page.get_by_role("option", name=choice).click()
        expect(page.get_by_role("listbox")).to_have_count(0)
    page.get_by_label("New name of Land").fill("country")
    expect(page.get_by_text("The source has all 2 columns of the dataset.")).to_be_visible()
    visit.shoot("load-mapping")
    look(page)
    expect(page.get_by_role("region", name="New rows").locator("tbody")).to_have_text("2bobFR")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Loaded as version 2")).to_be_visible()
    assert rows(api, f"SELECT * FROM datasets.{dataset['table_name']} ORDER BY id") == [
        [1, "Ann", None],
        [2, "bob", "FR"],
    ]


@pytest.mark.spark
def test_a_feed_is_loaded_with_the_options(visit: Visit, api: httpx.Client) -> None:
    dataset = made(api, "id,name,at\n1,ann,5\n2,bob,5\n3,eve,5\n")
    upload_id = uploaded(api, "op,id,at\nu,1,4\nd,2,9\nu,3,9\n")
    page = visit.go(f"/datasets/{dataset['id']}/load?upload={upload_id}")
    expect(page.get_by_text("The dataset lacks 1 column of the source: op.")).to_be_visible()
    page.get_by_role("button", name="id unique in the dataset").click()
    page.get_by_label("Upsert", exact=True).check()
    page.get_by_text("More options").click()
    for label, choice in (("Columns that the source lacks", "Keep the stored values"), ("Only newer rows by", "at")):
        page.get_by_label(label).click()
        page.get_by_role("option", name=choice).click()
        expect(page.get_by_role("listbox")).to_have_count(0)
    page.get_by_label("Operation column").fill("op")
    page.get_by_label("Maximum number or share of deleted rows").fill("0.1")
    page.get_by_role("button", name="Preview changes").click()
    expect(page.get_by_role("alert")).to_contain_text("1 of 3 rows would be deleted, and max_deleted=0.1 allows 0")
    page.get_by_label("Maximum number or share of deleted rows").fill("1")
    look(page)
    expect(page.get_by_text("Matching rows keep their values in name.")).to_be_visible()
    expect(page.get_by_text("stale, without effect")).to_be_visible()
    visit.shoot("load-feed")
    page.get_by_role("button", name="Load and delete 1 row").click()
    expect(page.get_by_role("status").filter(has_text="Loaded as version 2")).to_be_visible()
    assert rows(api, f"SELECT * FROM datasets.{dataset['table_name']} ORDER BY id") == [[1, "ann", 5], [3, "eve", 9]]


@pytest.mark.long  # short runs load with the other options, and check the scope of a draft and of HTTP
@pytest.mark.spark
def test_a_full_merge_replaces_the_rows_of_a_scope(visit: Visit, api: httpx.Client) -> None:
    dataset = made(api, "id,day\n1,2025-01-01\n2,2025-01-01\n3,2025-01-02\n")
    upload_id = uploaded(api, "id,day\n2,2025-01-01\n")
    page = visit.go(f"/datasets/{dataset['id']}/load?upload={upload_id}")
    page.get_by_role("button", name="id unique in the dataset").click()
    page.get_by_label("Full merge", exact=True).check()
    page.get_by_text("More options").click()
    page.get_by_label("Only rows with").fill("day")
    expect(page.get_by_text("Write the scope as a column and its values")).to_be_visible()
    page.get_by_label("Only rows with").fill("day=2025-01-01")
    look(page)
    page.get_by_role("button", name="Load and delete 1 row").click()
    expect(page.get_by_role("status").filter(has_text="Loaded as version 2")).to_be_visible()
    assert rows(api, f"SELECT id FROM datasets.{dataset['table_name']} ORDER BY id") == [[2], [3]]


@pytest.mark.long  # short runs load a file on this page, and the rows of a query over HTTP
@pytest.mark.spark
def test_rows_of_a_query_can_be_loaded_by_keyboard(visit: Visit, api: httpx.Client) -> None:
    dataset = made(api, "id,name\n" + "".join(f"{number},a\n" for number in range(1, 1501)))
    table = f"datasets.{dataset['table_name']}"
    page = visit.go(f"/datasets/{dataset['id']}/load")
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked()

    def use(sql: str) -> None:
        page.get_by_role("button", name="Or use a query").press("Enter")
        page.get_by_label("SQL query").fill(sql)
        page.get_by_role("button", name="Use this query").press("Enter")

    use("SELECT 5 AS id FROM nowhere")
    expect(page.get_by_role("alert")).to_contain_text("nowhere")
    page.reload()
    use("SELECT 5 AS id")
    expect(page.get_by_text("The source lacks 1 column of the dataset: name")).to_be_visible()
    page.get_by_role("button", name="Change source").press("Enter")
    use(f"SELECT a.id, b.name FROM {table} a, {table} b, {table} c WHERE a.id * b.id * c.id % 8009 = 7")
    expect(page.get_by_role("region", name="First rows").get_by_role("cell").first).to_be_visible()
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked()
    page.get_by_role("button", name="Preview changes").press("Enter")
    page.get_by_role("button", name="Cancel").press("Enter")
    expect(page.get_by_text("Cancelled. Nothing changed.")).to_be_visible()
    page.get_by_role("button", name="Change source").press("Enter")
    use(f"SELECT id + 1 AS id, name FROM {table} WHERE id > 1490")
    expect(page.get_by_role("region", name="First rows").get_by_role("cell").first).to_be_visible()
    page.get_by_label("Upsert", exact=True).press("ArrowDown")
    expect(page.get_by_label("Insert", exact=True)).to_be_checked()
    page.get_by_role("button", name="Preview changes").press("Enter")
    expect(page.get_by_role("region", name="New rows").locator("tbody")).to_have_text("1501a")
    page.get_by_role("button", name="Load", exact=True).press("Enter")
    expect(page.get_by_role("status").filter(has_text="Loaded as version 2")).to_be_visible()
    page.get_by_role("button", name="View dataset").press("Enter")
    page.wait_for_url(f"{visit.url}/datasets/{dataset['id']}")


@pytest.mark.long  # short runs check conflicts of loads over HTTP
@pytest.mark.spark
def test_concurrent_changes_stop_the_load_and_appear_in_the_undo_dialog(visit: Visit, api: httpx.Client) -> None:
    dataset = made(api, "id,name\n1,ann\n", "Shared by two")
    address = f"/v1/datasets/{dataset['id']}/loads"

    def somebody_appends(row: str) -> None:
        inline = {"format": "csv", "content": f"id,name\n{row}\n"}
        api.post(address, json={"source": {"inline": inline}, "strategy": "append"}).raise_for_status()

    page = visit.go(f"/datasets/{dataset['id']}/load")
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked()  # the page is at rest
    page.get_by_role("button", name="Or use a query").press("Enter")
    page.get_by_label("SQL query").fill("SELECT 9 AS id, 'zoe' AS name")
    page.get_by_role("button", name="Use this query").press("Enter")
    expect(page.get_by_role("region", name="First rows").get_by_role("cell").first).to_be_visible()
    look(page)
    expect(page.get_by_role("button", name="Load", exact=True)).to_be_visible()
    somebody_appends("2,bob")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Someone changed the dataset after this preview.")
    assert api.get(f"/v1/datasets/{dataset['id']}").json()["version"] == 2
    look(page)
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Loaded as version 3")).to_be_visible()
    somebody_appends("3,cy")
    page.get_by_role("button", name="Undo and restore version 2").click()
    expect(page.get_by_role("dialog")).to_contain_text("This also undoes version 4")
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.get_by_text("The loaded rows remain available as version 3.")).to_be_visible()
