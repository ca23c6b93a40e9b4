// What the SQL page adds to NiceGUI's CodeMirror: completion, colours that follow the page, a draft that survives a
// reload, the last queries, links, and exports. It stands beside the editor and knows it by its id.
import * as CM from "nicegui-codemirror";

const DRAFT = "inlay.sql.draft";
const HISTORY = "inlay.sql.history";
const MOST_REMEMBERED = 50;
const LONGEST_REMEMBERED = 10000;
const LONGEST_LINK = 8000;
const THEMES = { light: "githubLight", dark: "githubDark" };

// Browsers may forbid to keep anything.
function stored(storage, key, otherwise) {
  try { return JSON.parse(storage.getItem(key)) ?? otherwise; } catch { return otherwise; }
}
function store(storage, key, value) {
  try { storage.setItem(key, JSON.stringify(value)); } catch { /* then it is not kept */ }
}

function linkTo(text) {
  const path = text ? `/sql?q=${encodeURIComponent(text)}` : "/sql";
  return path.length <= LONGEST_LINK ? path : null;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // not allowed where the page did not come over a safe way
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
    this.opened = this.link || "";
    const codemirror = await this.found();
    this.view = await codemirror.editorPromise;
    this.extend();
    this.restore();
    this.followTheme(codemirror);
    this.$emit("opened", { restored: this.view.state.doc.toString() !== this.opened });
  },
  unmounted() { this.themeObserver?.disconnect(); },
  methods: {
    async found() { // the application knows its elements only when all of them are mounted
      while (typeof mounted_app === "undefined" || !mounted_app || !getElement(this.editor)) {
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      return getElement(this.editor);
    },
    extend() {
      const completions = [{ autocomplete: (context) => this.complete(context) }]; // always the same, or it is dropped
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

    // ---------------------------------------------------------------------------------------------------- the text
    text() { return this.view.state.doc.toString(); },
    keepDraft() { store(sessionStorage, DRAFT, { link: this.opened, text: this.text() }); },
    restore() { // what was typed at this address, unless it has been left since
      const draft = stored(sessionStorage, DRAFT, null);
      if (draft && draft.link === this.opened && draft.text !== this.text()) this.replace(draft.text);
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
    know(tables, functions) { this.tables = tables; this.functions = functions; },
    see(scopes) { this.scopes = scopes; },
    complete(context) {
      const node = CM.syntaxTree(context.state).resolveInner(context.pos, -1);
      if (/Comment|^String$/.test(node.name)) return null;
      const isQuoted = node.name === "QuotedIdentifier";
      const from = isQuoted ? node.from : context.matchBefore(/\w*/).from;
      const line = context.state.doc.lineAt(from);
      const owner = line.text.slice(0, from - line.from).match(/(\w+|"[^"]*")\s*\.\s*$/)?.[1];
      if (from === context.pos && !owner && !context.explicit) return null;
      const options = owner ? this.within(owner.replaceAll('"', "").toLowerCase()) : this.anything();
      if (!isQuoted) return { from, options };
      const isClosed = context.state.sliceDoc(context.pos, node.to) === '"';
      return {
        from,
        to: isClosed ? node.to : context.pos,
        options: options.filter((each) => each.quoted).map((each) => ({ ...each, label: each.quoted, apply: each.quoted })),
      };
    },
    within(owner) {
      if (owner === "datasets") return this.tables.map((table) => ({ ...table, type: "class" }));
      return (this.scopes[owner] || []).map((column) => ({ ...column, type: "property", boost: 2 }));
    },
    anything() {
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
    remember(text) {
      const path = linkTo(text);
      if (path !== null) {
        window.history.replaceState(window.history.state, "", path);
        this.opened = text;
      }
      this.keepDraft();
      if (text.length > LONGEST_REMEMBERED) return;
      const others = this.past().filter((each) => each.text !== text);
      store(localStorage, HISTORY, [{ text, at: Date.now() }, ...others].slice(0, MOST_REMEMBERED));
    },
    past() {
      const kept = stored(localStorage, HISTORY, []);
      return Array.isArray(kept) ? kept.filter((each) => typeof each?.text === "string" && Number.isFinite(each.at)) : [];
    },
    forget() { localStorage.removeItem(HISTORY); },

    // --------------------------------------------------------------------------------------------------- elsewhere
    async share(text) {
      const path = linkTo(text);
      if (path === null) return { link: null, copied: false };
      const link = location.origin + path;
      return { link, copied: await copied(link) };
    },
    async fetchAs(text, media, name) { // the whole result, as any other client would ask for it
      const headers = { "Content-Type": "application/json", Accept: media };
      try {
        const answer = await fetch("/v1/query", { method: "POST", headers, body: JSON.stringify({ sql: text }) });
        if (!answer.ok) return { problem: await answer.json() };
        save(await answer.blob(), name);
        const told = (header) => answer.headers.get(header);
        return { rows: Number(told("X-Row-Count")), truncated: told("X-Truncated") === "true" };
      } catch {
        return { problem: { detail: "The connection was lost.", hint: "Try again." } };
      }
    },
  },
};
