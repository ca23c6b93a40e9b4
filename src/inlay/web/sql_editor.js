// Extends NiceGUI's CodeMirror, which it finds by element id: completion, the theme of the page, a draft that survives a
// reload, history, links, and exports.
import * as CM from "nicegui-codemirror";

const DRAFT = "inlay.sql.draft";
const HISTORY = "inlay.sql.history";
const MAX_HISTORY = 50; // queries
const MAX_HISTORY_TEXT = 10000; // characters of a query
const MAX_LINK = 8000; // characters
const THEMES = { light: "githubLight", dark: "githubDark" };

// Browsers may forbid access to their storage; drafts and history are then lost on reload.
function load(storage, key, fallback) {
  try { return JSON.parse(storage.getItem(key)) ?? fallback; } catch { return fallback; }
}
function store(storage, key, value) {
  try { storage.setItem(key, JSON.stringify(value)); } catch { /* The browser forbids access. */ }
}

function linkTo(text) {
  const path = text ? `/sql?q=${encodeURIComponent(text)}` : "/sql";
  return path.length <= MAX_LINK ? path : null;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // Browsers allow the clipboard API only over HTTPS and on localhost.
    const box = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    return done;
  }
}

function save(blob, name) {
  const anchor = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 60000);
}

export default {
  template: "<div hidden></div>",
  props: { editor: Number, link: String },
  async mounted() {
    this.tables = [];
    this.scopes = {};
    this.functions = [];
    this.openedText = this.link || "";
    const codemirror = await this.findEditor();
    this.view = await codemirror.editorPromise;
    this.extend();
    this.restore();
    this.followTheme(codemirror);
    this.$emit("opened", { restored: this.view.state.doc.toString() !== this.openedText });
  },
  unmounted() { this.themeObserver?.disconnect(); },
  methods: {
    async findEditor() { // NiceGUI finds elements by id only after it has mounted all of them.
      while (typeof mounted_app === "undefined" || !mounted_app || !getElement(this.editor)) {
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      return getElement(this.editor);
    },
    extend() {
      // CodeMirror drops the completion unless every call returns the same array.
      const completions = [{ autocomplete: (context) => this.complete(context) }];
      this.view.dispatch({
        effects: CM.StateEffect.appendConfig.of([
          CM.EditorState.languageData.of(() => completions),
          CM.EditorView.contentAttributes.of({ "aria-label": "SQL" }),
          CM.EditorView.updateListener.of((update) => { if (update.docChanged) this.keepDraft(); }),
        ]),
      });
    },
    followTheme(codemirror) {
      const follow = () => codemirror.setTheme(THEMES[document.body.classList.contains("body--dark") ? "dark" : "light"]);
      this.themeObserver = new MutationObserver(follow);
      this.themeObserver.observe(document.body, { attributes: true, attributeFilter: ["class"] });
      follow();
    },

    // -------------------------------------------------------------------------------------------------------- text
    text() { return this.view.state.doc.toString(); },
    keepDraft() { store(sessionStorage, DRAFT, { link: this.openedText, text: this.text() }); },
    restore() { // Restore a draft that belongs to this address.
      const draft = load(sessionStorage, DRAFT, null);
      if (draft && draft.link === this.openedText && draft.text !== this.text()) this.replace(draft.text);
    },
    replace(text) {
      this.view.dispatch({ changes: { from: 0, to: this.view.state.doc.length, insert: text },
        selection: { anchor: text.length } });
      this.view.focus();
    },
    insert(text) {
      const { from } = this.view.state.selection.main;
      const before = this.view.state.sliceDoc(Math.max(0, from - 1), from);
      const spaced = before && !/[\s(.]/.test(before) ? ` ${text}` : text;
      this.view.dispatch(this.view.state.replaceSelection(spaced));
      this.view.focus();
    },
    goTo(line, column) {
      const at = this.view.state.doc.line(Math.min(line, this.view.state.doc.lines));
      this.view.dispatch({ selection: { anchor: Math.min(at.from + column - 1, at.to) }, scrollIntoView: true });
      this.view.focus();
    },

    // -------------------------------------------------------------------------------------------------- completion
    setTables(tables, functions) { this.tables = tables; this.functions = functions; },
    setScopes(scopes) { this.scopes = scopes; },
    complete(context) {
      const node = CM.syntaxTree(context.state).resolveInner(context.pos, -1);
      if (/Comment|^String$/.test(node.name)) return null;
      const isQuoted = node.name === "QuotedIdentifier";
      const from = isQuoted ? node.from : context.matchBefore(/\w*/).from;
      const line = context.state.doc.lineAt(from);
      const owner = line.text.slice(0, from - line.from).match(/(\w+|"[^"]*")\s*\.\s*$/)?.[1];
      if (from === context.pos && !owner && !context.explicit) return null;
      const options = owner ? this.membersOf(owner.replaceAll('"', "").toLowerCase()) : this.allNames();
      if (!isQuoted) return { from, options };
      const isClosed = context.state.sliceDoc(context.pos, node.to) === '"';
      return {
        from,
        to: isClosed ? node.to : context.pos,
        options: options.filter((each) => each.quoted).map((each) => ({ ...each, label: each.quoted, apply: each.quoted })),
      };
    },
    membersOf(owner) {
      if (owner === "datasets") return this.tables.map((table) => ({ ...table, type: "class" }));
      return (this.scopes[owner] || []).map((column) => ({ ...column, type: "property", boost: 2 }));
    },
    allNames() {
      const columns = new Map(Object.values(this.scopes).flat().map((column) => [column.label, column]));
      const tables = this.tables.map(({ label, apply, detail }) => ({
        label: `datasets.${label}`, apply: `datasets.${apply}`, detail }));
      return [
        ...[...columns.values()].map((column) => ({ ...column, type: "property", boost: 2 })),
        ...tables.map((table) => ({ ...table, type: "class", boost: 1 })),
        ...this.functions.map((name) => ({ label: name, apply: `${name}(`, type: "function" })),
      ];
    },

    // ----------------------------------------------------------------------------------------------------- history
    addToHistory(text) {
      const path = linkTo(text);
      if (path !== null) {
        window.history.replaceState(window.history.state, "", path);
        this.openedText = text;
      }
      this.keepDraft();
      if (text.length > MAX_HISTORY_TEXT) return;
      const others = this.history().filter((each) => each.text !== text);
      store(localStorage, HISTORY, [{ text, at: Date.now() }, ...others].slice(0, MAX_HISTORY));
    },
    history() {
      const entries = load(localStorage, HISTORY, []);
      return Array.isArray(entries) ? entries.filter((each) => typeof each?.text === "string" && Number.isFinite(each.at)) : [];
    },
    clearHistory() { localStorage.removeItem(HISTORY); },

    // ------------------------------------------------------------------------------------------- links and exports
    async share(text) {
      const path = linkTo(text);
      if (path === null) return { link: null, copied: false };
      const link = location.origin + path;
      return { link, copied: await copy(link) };
    },
    async export(text, media, name) { // Download the whole result from the HTTP API, like any other client.
      const headers = { "Content-Type": "application/json", Accept: media };
      try {
        const answer = await fetch("/v1/query", { method: "POST", headers, body: JSON.stringify({ sql: text }) });
        if (!answer.ok) return { problem: await answer.json() };
        save(await answer.blob(), name);
        const header = (field) => answer.headers.get(field);
        return { rows: Number(header("X-Row-Count")), truncated: header("X-Truncated") === "true" };
      } catch {
        return { problem: { detail: "The connection to the service was lost.", hint: "Export the result again." } };
      }
    },
  },
};
