// A grid that requests its rows page by page. It shows names and cells as text, never as HTML.
import * as AgGrid from "nicegui-aggrid";

const LOCALE = { blank: "Is NULL", notBlank: "Is not NULL", empty: "Choose one", noRowsToShow: "No rows" };
const [MIN_WIDTH, MAX_WIDTH, MAX_STRETCHED_WIDTH, CHARACTER, BORDERS] = [110, 340, 480, 7.8, 2]; // pixels
const THEME = AgGrid.themeQuartz.withParams({
  backgroundColor: "var(--surface)", foregroundColor: "var(--ink)", borderColor: "var(--line)", accentColor: "var(--brand)",
  headerBackgroundColor: "var(--ground)", chromeBackgroundColor: "var(--ground)", fontSize: 13.5, rowHeight: 32,
  headerHeight: 36, wrapperBorderRadius: 8, rowHoverColor: "color-mix(in srgb, var(--brand) 8%, transparent)",
});

function option(operator) {
  const name = { isTrue: "True", isFalse: "False" }[operator];
  return name ? { displayKey: operator, displayName: name, numberOfInputs: 0, predicate: () => true } : operator;
}

function columnDef(column, at) {
  const hasInput = column.operators.some((each) => each === "equals");
  return {
    colId: `c${at}`,
    headerName: column.name,
    headerTooltip: `${column.name}: ${column.type}`,
    valueGetter: (params) => params.data?.[at],
    cellClass: column.isNumber ? "inlay-number ag-right-aligned-cell" : "",
    headerClass: column.isNumber ? "ag-right-aligned-header" : "",
    filterParams: {
      filterOptions: (hasInput ? column.operators : ["empty", ...column.operators]).map(option),
      maxNumConditions: 1, trimInput: false, debounceMs: 400,
    },
  };
}

const NUMBER_COLUMN = {
  colId: "number", headerName: "#", headerTooltip: "Row number in this order", pinned: "left", sortable: false, filter: false,
  resizable: false, suppressSizeToFit: true, suppressMovable: true, lockPosition: "left", cellClass: "inlay-row-number ag-right-aligned-cell",
  valueGetter: (params) => params.data && (params.node.rowIndex + 1).toLocaleString("en"),
};

export default {
  template: "<div></div>",
  props: { columns: Array, total: Number, block: Number, label: String },
  mounted() {
    AgGrid.ModuleRegistry.registerModules([AgGrid.AllCommunityModule]);
    this.pending = new Map();
    this.latest = 0;
    const digits = this.total.toLocaleString("en").length;
    this.api = AgGrid.createGrid(this.$el, {
      theme: THEME,
      columnDefs: [{ ...NUMBER_COLUMN, width: 30 + 8 * digits }, ...this.columns.map(columnDef)],
      defaultColDef: {
        sortable: true, resizable: true, minWidth: 80, width: 150, cellDataType: false, filter: "agTextColumnFilter",
        floatingFilter: true,
        valueFormatter: (params) => (params.data ? params.value ?? "NULL" : "…"),
        cellClassRules: { "inlay-null": (params) => !params.data || params.value === null },
      },
      rowModelType: "infinite",
      datasource: { getRows: (params) => this.request(params) },
      cacheBlockSize: this.block, maxBlocksInCache: 20, maxConcurrentDatasourceRequests: 2, blockLoadDebounceMillis: 80,
      infiniteInitialRowCount: Math.max(1, Math.min(this.total, this.block)),
      popupParent: document.body, localeText: LOCALE, enableBrowserTooltips: true, ensureDomOrder: true, enableCellTextSelection: true,
      suppressDragLeaveHidesColumns: true, animateRows: false,
      onGridSizeChanged: () => this.fit(),
      onColumnResized: (event) => { this.isResized ||= event.source === "uiColumnResized"; },
      onCellDoubleClicked: (event) => this.open(event),
      onCellKeyDown: (event) => { if (event.event.key === "Enter") this.open(event); },
    });
    this.$el.querySelector("[role=grid]")?.setAttribute("aria-label", this.label);
  },
  unmounted() { this.api?.destroy(); },
  methods: {
    request(params) {
      const key = (this.latest += 1);
      this.pending.set(key, params);
      this.$emit("rows_requested", {
        key, start: params.startRow, stop: params.endRow, sorts: params.sortModel, filters: params.filterModel,
      });
    },
    deliver(key, rows, total) {
      const params = this.pending.get(key);
      if (!params) return;
      this.pending.delete(key);
      if (rows === null) return params.failCallback();
      params.successCallback(rows, total);
      if (key === this.latest) { if (total) this.api.hideOverlay(); else this.api.showNoRowsOverlay(); }
      if (!this.widths) this.measure(rows);
    },
    measure(rows) {
      this.widths = this.columns.map((column, at) => {
        const length = Math.max(0, ...rows.map((row) => (row[at] ?? "NULL").length));
        const width = Math.max(34 + CHARACTER * length, 54 + CHARACTER * column.name.length);
        return Math.max(MIN_WIDTH, Math.min(MAX_WIDTH, width));
      });
      this.fit();
    },
    fit() {
      if (!this.widths || this.isResized) return;
      const used = BORDERS + this.api.getColumn("number").getActualWidth();
      // Stretch the measured widths in proportion. The grid's own `sizeColumnsToFit` ignores them.
      const factor = (this.$el.clientWidth - used) / this.widths.reduce((sum, each) => sum + each, 0);
      const widths = this.widths.map((each) => (factor > 1 ? Math.max(each, Math.min(each * factor, MAX_STRETCHED_WIDTH)) : each));
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
    retry() { this.api.refreshInfiniteCache(); },
    reset() {
      this.api.setFilterModel(null);
      this.api.applyColumnState({ defaultState: { sort: null } });
    },
  },
};
