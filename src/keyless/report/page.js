"use strict";
(async () => {
  const PAGE = 25;
  const byId = (id) => document.getElementById(id);
  const packed = byId("store");
  const panel = byId("match-panel");
  if (!packed || !panel) return;
  const say = byId("match-count");
  if (typeof DecompressionStream === "undefined") {
    say.textContent = "This browser is too old to unpack the whole table; its first lines are shown.";
    return;
  }
  const bytes = Uint8Array.from(atob(packed.textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = JSON.parse(await new Response(stream).text());
  const size = data.row.length;
  const several = data.tables.length > 1;

  const labelOf = (table, row) => {
    if (row < 0) return "";
    const labels = data.labels[table];
    return labels === null ? String(row) : labels[row];
  };
  const reference = (k) => labelOf(0, data.row[k]);
  const match = (k) => labelOf(data.table[k] + 1, data.match[k]);
  const other = (k) => labelOf(data.table[k] + 1, data.other[k]);

  // Keys to sort by: numbers where all labels are numbers, else text; what is missing comes last.
  const labelKeys = (get, there) => {
    const labels = Array.from({ length: size }, (_, k) => (there(k) ? get(k) : null));
    const numeric = labels.every((label) => label === null || (label !== "" && isFinite(label)));
    return numeric ? labels.map((label) => (label === null ? null : Number(label))) : labels;
  };
  const makeKeys = {
    row: () => labelKeys(reference, () => true),
    table: () => data.table,
    match: () => labelKeys(match, (k) => data.match[k] >= 0),
    probability: () => data.probability,
    margin: () => data.margin.map((margin) => (margin === null ? Infinity : margin)),
    other: () => labelKeys(other, (k) => data.other[k] >= 0),
    likely: () => data.likely.map((likely, k) => (data.other[k] < 0 ? null : likely)),
  };
  const keys = {};

  let texts = null;
  const textOf = (k) => {
    if (texts === null) texts = new Array(size);
    if (texts[k] === undefined) texts[k] = `${reference(k)}\n${match(k)}\n${other(k)}`.toLowerCase();
    return texts[k];
  };
  const alone = (k) => data.match[k] < 0;
  const filters = {
    all: () => true,
    sure: (k) => !alone(k) && data.probability[k] >= 9000,
    doubtful: (k) => !alone(k) && !(data.probability[k] >= 9000),
    guess: (k) => !alone(k) && !(data.probability[k] >= 5000),
    alone,
  };

  const state = { search: "", certainty: "all", table: -1, key: "", up: true, page: 0 };
  let shown = [];

  const select = () => {
    const wanted = state.search.trim().toLowerCase();
    const certain = filters[state.certainty];
    shown = [];
    for (let k = 0; k < size; k++) {
      if (state.table >= 0 && data.table[k] !== state.table) continue;
      if (!certain(k) || (wanted && !textOf(k).includes(wanted))) continue;
      shown.push(k);
    }
    if (!state.key) return;
    const by = (keys[state.key] ??= makeKeys[state.key]());
    const sign = state.up ? 1 : -1;
    shown.sort((a, b) => {
      const x = by[a], y = by[b];
      if (x === y) return a - b;
      if (x === null) return 1;
      if (y === null) return -1;
      return x < y ? -sign : sign;
    });
  };

  const cell = (name, kind, content) => {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    if (name === "th") made.scope = "row";
    if (content !== null) made.append(content);
    return made;
  };
  // Labels are text and nothing else, in their own direction of writing.
  const isolated = (label) => {
    const made = document.createElement("bdi");
    made.textContent = label;
    if (label.length <= 24) made.className = "s";
    return made;
  };
  const line = (k) => {
    const made = document.createElement("tr");
    made.append(cell("th", "", isolated(reference(k))));
    if (several) made.append(cell("td", "", isolated(data.tables[data.table[k]].name)));
    made.append(alone(k) ? cell("td", "none", "no partner") : cell("td", "", isolated(match(k))));
    const probability = data.probability[k];
    const stated = cell("td", "n p", null);
    if (probability !== null) {
      const bar = document.createElement("span");
      bar.className = "bar";
      bar.style.setProperty("--p", String(probability / 1e4));
      stated.append(bar, (probability / 1e4).toFixed(4));
    } else stated.append("–");
    made.append(stated);
    made.append(cell("td", "n", data.margin[k] === null ? "–" : (data.margin[k] / 10).toFixed(1)));
    const has = data.other[k] >= 0;
    const likely = data.likely[k];
    made.append(has ? cell("td", "", isolated(other(k))) : cell("td", "none", likely ? "no partner" : "none"));
    made.append(cell("td", "n", has || likely ? (likely / 1e4).toFixed(4) : ""));
    return made;
  };

  const body = byId("match-rows");
  const previous = byId("match-previous");
  const next = byId("match-next");
  const draw = () => {
    const pages = Math.max(1, Math.ceil(shown.length / PAGE));
    state.page = Math.min(Math.max(0, state.page), pages - 1);
    const from = state.page * PAGE;
    const part = shown.slice(from, from + PAGE);
    body.replaceChildren(...part.map(line));
    previous.disabled = state.page === 0;
    next.disabled = state.page >= pages - 1;
    const count = (number) => number.toLocaleString("en");
    say.textContent = part.length
      ? `${count(from + 1)} to ${count(from + part.length)} of ${count(shown.length)}`
        + (shown.length < size ? ` found among ${count(size)}` : "")
      : "Nothing fits.";
  };
  const renew = () => { state.page = 0; select(); draw(); };

  let waiting = 0;
  byId("match-search").addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.search = event.target.value; renew(); }, 120);
  });
  byId("match-certainty").addEventListener("change", (event) => { state.certainty = event.target.value; renew(); });
  const chosen = byId("match-table");
  if (chosen) chosen.addEventListener("change", () => { state.table = Number(chosen.value); renew(); });
  const heads = panel.querySelectorAll("th[data-key]");
  for (const head of heads) {
    head.querySelector("button").addEventListener("click", () => {
      const key = head.dataset.key;
      // Up, down, and back to the order of the reference.
      if (state.key !== key) [state.key, state.up] = [key, true];
      else if (state.up) state.up = false;
      else state.key = "";
      for (const one of heads) one.removeAttribute("aria-sort");
      if (state.key) head.setAttribute("aria-sort", state.up ? "ascending" : "descending");
      renew();
    });
  }
  previous.addEventListener("click", () => { state.page -= 1; draw(); });
  next.addEventListener("click", () => { state.page += 1; draw(); });
  for (const tool of panel.querySelectorAll("[hidden]")) tool.hidden = false;
  renew();
  document.documentElement.dataset.ready = "yes";
})();
