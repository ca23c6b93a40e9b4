// A button that copies a text. Browsers offer no clipboard API to pages served over plain HTTP from another machine.
async function copy(text, near) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.style.cssText = "position: fixed; opacity: 0";
  near.after(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  near.focus();
}

export default {
  template: `
    <button type="button" class="inlay-copy" :aria-label="label" :title="label" @click="run">
      <i class="q-icon material-icons" aria-hidden="true">{{ done ? "check" : "content_copy" }}</i>
      <span class="inlay-copy-status" role="status">{{ done ? "Copied" : "" }}</span>
    </button>`,
  props: { text: String, label: String },
  data() { return { done: false }; },
  methods: {
    async run() {
      await copy(this.text, this.$el);
      this.done = true;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => { this.done = false; }, 2000);
    },
  },
  unmounted() { clearTimeout(this.timer); },
};
