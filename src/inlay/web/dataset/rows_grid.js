// A grid over any number of rows, which asks for them page by page. Cells and names are text: nothing here makes HTML.
import * as AgGrid from "nicegui-aggrid";

const WORDS = { blank: "Is NULL", notBlank: "Is not NULL", empty: "Choose one", noRowsToShow: "No rows" };
const [SHORTEST_WIDTH, LONGEST_WIDTH, WIDEST_WIDTH, LETTER, BORDERS] = [110, 340, 480, 7.8, 2];  // pixels
const THEME = AgGrid.themeQuartz.withParams({
  backgroundColor: "var(--surface)", foregroundColor: "var(--ink)", borderColor: "var(--line)", accentColor: "var(--brand)",
  headerBackgroundColor: "var(--ground)", chromeBackgroundColor: "var(--ground)", fontSize: 13.5, rowHeight: 32,
  headerHeight: 36, wrapperBorderRadius: 8, rowHoverColor: "color-mix(in srgb, var(--brand) 8%, transparent)",
});

function option(operator) {
  const word = { isTrue: "True", isFalse: "False" }[operator];
  return word ? { displayKey: operator, displayName: word, numberOfInputs: 0, predicate: () => true } : operator;
}

function column(told, at) {
  const hasInput = told.operators.some((each) => each === "equals");
  return {
    colId: `c${at}`,
    headerName: told.name,
    headerTooltip: `${told.name}: ${told.type}`,
    valueGetter: (params) => params.data?.[at],
    cellClass: told.isNumber ? "inlay-number ag-right-aligned-cell" : "",
    headerClass: told.isNumber ? "ag-right-aligned-header" : "",
    filterParams: {
      filterOptions: (hasInput ? told.operators : ["empty", ...told.operators]).map(option),
      maxNumConditions: 1, trimInput: false, debounceMs: 400,
    },
  };
}

const NUMBER = {
  colId: "number", headerName: "#", headerTooltip: "Place in this order", pinned: "left", sortable: false, filter: false,
  resizable: false, suppressSizeToFit: true, suppressMovable: true, lockPosition: "left", cellClass: "inlay-place-number ag-right-aligned-cell",
  valueGetter: (params) => params.data && (params.node.rowIndex + 1).toLocaleString("en"),
};

export default {
  template: "<div></div>",
  props: { columns: Array, total: Number, block: Number, label: String },
  mounted() {
    AgGrid.ModuleRegistry.registerModules([AgGrid.AllCommunityModule]);
    this.waiting = new Map();
    this.asked = 0;
    const digits = this.total.toLocaleString("en").length;
    this.api = AgGrid.createGrid(this.$el, {
      theme: THEME,
      columnDefs: [{ ...NUMBER, width: 30 + 8 * digits }, ...this.columns.map(column)],
      defaultColDef: {
        sortable: true, resizable: true, minWidth: 80, width: 150, cellDataType: false, filter: "agTextColumnFilter",
        floatingFilter: true,
        valueFormatter: (params) => (params.data ? params.value ?? "NULL" : "…"),
        cellClassRules: { "inlay-null": (params) => !params.data || params.value === null },
      },
      rowModelType: "infinite",
      datasource: { getRows: (params) => this.want(params) },
      cacheBlockSize: this.block, maxBlocksInCache: 20, maxConcurrentDatasourceRequests: 2, blockLoadDebounceMillis: 80,
      infiniteInitialRowCount: Math.max(1, Math.min(this.total, this.block)),
      popupParent: document.body, localeText: WORDS, enableBrowserTooltips: true, ensureDomOrder: true, enableCellTextSelection: true,
      suppressDragLeaveHidesColumns: true, animateRows: false,
      onGridSizeChanged: () => this.fit(),
      onColumnResized: (event) => { this.isByHand ||= event.source === "uiColumnResized"; },
      onCellDoubleClicked: (event) => this.open(event),
      onCellKeyDown: (event) => { if (event.event.key === "Enter") this.open(event); },
    });
    this.$el.querySelector("[role=grid]")?.setAttribute("aria-label", this.label);
  },
  unmounted() { this.api?.destroy(); },
  methods: {
    want(params) {
      const key = (this.asked += 1);
      this.waiting.set(key, params);
      this.$emit("wanted", {
        key, start: params.startRow, stop: params.endRow, sorts: params.sortModel, filters: params.filterModel,
      });
    },
    deliver(key, rows, total) {
      const params = this.waiting.get(key);
      if (!params) return;
      this.waiting.delete(key);
      if (rows === null) return params.failCallback();
      params.successCallback(rows, total);
      if (key === this.asked) { if (total) this.api.hideOverlay(); else this.api.showNoRowsOverlay(); }
      if (!this.widths) this.measure(rows);
    },
    measure(rows) {
      this.widths = this.columns.map((told, at) => {
        const longest = Math.max(0, ...rows.map((row) => (row[at] ?? "NULL").length));
        const wanted = Math.max(34 + LETTER * longest, 54 + LETTER * told.name.length);
        return Math.max(SHORTEST_WIDTH, Math.min(LONGEST_WIDTH, wanted));
      });
      this.fit();
    },
    fit() {
      if (!this.widths || this.isByHand) return;
      const place = this.api.getColumn("number").getActualWidth();
      // in proportion: the grid's own way to fit would forget what was measured
      const spare = (this.$el.clientWidth - BORDERS - place) / this.widths.reduce((sum, each) => sum + each, 0);
      const widths = this.widths.map((each) => (spare > 1 ? Math.max(each, Math.min(each * spare, WIDEST_WIDTH)) : each));
      this.api.setColumnWidths(widths.map((newWidth, at) => ({ key: `c${at}`, newWidth: Math.floor(newWidth) })));
    },
    open(event) {
      if (!event.data) return;
      this.$emit("opened", {
        row: event.rowIndex,
        sorts: this.api.getColumnState().filter((each) => each.sort).sort((a, b) => a.sortIndex - b.sortIndex),
        filters: this.api.getFilterModel(),
      });
    },
    again() { this.api.refreshInfiniteCache(); },
    reset() {
      this.api.setFilterModel(null);
      this.api.applyColumnState({ defaultState: { sort: null } });
    },
  },
};
