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
  const unpacked = async (element) => {
    const bytes = Uint8Array.from(atob(element.textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  };
  const data = await unpacked(packed);
  const kept = byId("details");
  const details = kept ? await unpacked(kept) : null;
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
  // Probabilities are in steps, rounded down; so is the threshold.
  const reached = (k) => data.probability[k] !== null && data.probability[k] >= state.threshold;
  const filters = {
    all: () => true,
    kept: (k) => !alone(k) && reached(k),
    check: (k) => !reached(k),
    alone,
  };

  const heads = panel.querySelectorAll("th[data-key]");
  const sorted = panel.querySelector("th[aria-sort]");
  const slider = byId("match-threshold");
  const state = {
    search: "", certainty: "all", table: -1, page: 0, threshold: 0,
    key: sorted.dataset.key, up: sorted.getAttribute("aria-sort") === "ascending",
  };
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

  const cell = (name, kind, content, head) => {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    if (name === "th") made.scope = "row";
    if (head) made.dataset.label = head;
    made.append(content);
    return made;
  };
  const stated = (steps) => {
    if (steps === null) return "–";
    if (steps > 9990) return ">0.999";
    const thousandths = Math.floor(steps / 10);
    return thousandths ? `0.${String(thousandths).padStart(3, "0")}` : "<0.001";
  };
  // Labels are text and nothing else, in their own direction of writing.
  const isolated = (label) => {
    const made = document.createElement("bdi");
    made.textContent = label;
    if (label.length <= 24) made.className = "s";
    return made;
  };
  const element = (name, kind, ...content) => {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    made.append(...content);
    return made;
  };

  // Why two rows are matched: the candidates, and both records with what each column says.
  const signed = (nats) => (nats === null ? "–" : `${nats < 0 ? "−" : "+"}${Math.abs(nats).toFixed(2)}`);
  const balance = (nats, largest) => {
    const bar = element("span", "balance");
    const share = String(largest > 0 ? Math.min(1, Math.abs(nats ?? 0) / largest) : 0);
    bar.style.setProperty(nats < 0 ? "--against" : "--for", share);
    return element("td", "n nats", signed(nats), bar);
  };
  const entry = (text) => (text === null ? cell("td", "none", "missing", "") : cell("td", "", isolated(text), ""));
  const record = (one, largest) => {
    const body = element("tbody", "");
    const names = details.columns[one.table];
    for (const [column, nats, actual, predicted] of one.cells) {
      body.append(element("tr", "", cell("th", "", isolated(names[column]), ""), entry(actual), entry(predicted),
        balance(nats, largest)));
    }
    const [others, rest] = one.others;
    if (others) {
      const name = `${count(others)} other ${others === 1 ? "column" : "columns"} together`;
      body.append(element("tr", "", cell("th", "none", name, ""), cell("td", "", "", ""), cell("td", "", "", ""),
        balance(rest, largest)));
    }
    for (const [column, actual] of one.unused) {
      const rest = cell("td", "none", "not used", "");
      rest.colSpan = 2;
      body.append(element("tr", "", cell("th", "", isolated(names[column]), ""), entry(actual), rest));
    }
    const heads = ["column", "actual", "predicted", "nats"].map((name) => {
      const head = element("th", name === "nats" ? "n" : "", name);
      head.scope = "col";
      return head;
    });
    return element("table", "cells", element("caption", "", isolated(one.id), " of ", isolated(details.tables[one.table])),
      element("thead", "", element("tr", "", ...heads)), body);
  };
  const candidate = ([label, likely, answer]) => element("li", answer ? "chosen" : "",
    label === null ? "no partner" : isolated(label), ` ${stated(likely)}${answer ? " (the answer)" : ""}`);
  const explained = (k, pair) => {
    const nats = pair.records.flatMap((one) => [...one.cells.map((cells) => cells[1]), one.others[1]]);
    const largest = Math.max(...nats.map((one) => Math.abs(one ?? 0)));
    const linked = pair.records.at(-1);
    const parts = [element("h3", "", "Row ", isolated(reference(k)), " of ", isolated(data.reference), " and row ",
      isolated(pair.partner), " of ", isolated(data.tables[data.table[k]].name))];
    if (!pair.matched) {
      parts.push(element("p", "", "This row has no partner by the answer. The likeliest candidate is shown beside it."));
    }
    const candidates = element("ul", "candidates", ...pair.candidates.map(candidate));
    candidates.setAttribute("aria-label", "Candidates and their probabilities");
    const left = pair.records.filter((one) => one !== linked).map((one) => record(one, largest));
    parts.push(element("p", "", "Candidates and their probabilities:"), candidates,
      element("div", "sides", element("div", "", ...left), element("div", "", record(linked, largest))),
      element("p", "quiet", "Predicted: what the other side of the pair says about the column, ± standard error. Nats: a "
        + "bar to the right speaks for the pair, a bar to the left against it. 1 nat makes the pair 2.7 times likelier, "
        + `4.6 nats make it 100 times likelier. All columns together: ${signed(pair.ratio)} nats.`));
    return parts;
  };
  const elsewhere = (k) => {
    const id = JSON.stringify(reference(k));
    const fromFolder = panel.dataset.door === "cli";
    const code = fromFolder ? `keyless explain run/ --row ${id}` : `links.explain(${id})`;
    const where = fromFolder ? ", from the folder of the run" : "";
    return [element("p", "", `This page has no details of this row. To see them${where}: `, element("code", "", code))];
  };
  const open = (made, k) => {
    const button = made.querySelector("button");
    const next = made.nextElementSibling;
    const opened = next !== null && next.classList.contains("why");
    button.setAttribute("aria-expanded", String(!opened));
    if (opened) {
      button.removeAttribute("aria-controls");
      next.remove();
      return;
    }
    const pair = details?.pairs[k];
    const inside = element("td", "", ...(pair ? explained(k, pair) : elsewhere(k)));
    inside.colSpan = heads.length;
    const below = element("tr", "why", inside);
    below.id = `why-${k}`;
    button.setAttribute("aria-controls", below.id);
    made.after(below);
  };

  const line = (k) => {
    const made = document.createElement("tr");
    made.dataset.line = String(k);
    const button = element("button", "open", isolated(reference(k)));
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    made.append(cell("th", "", button, ""));
    if (several) made.append(cell("td", "", isolated(data.tables[data.table[k]].name), "table"));
    made.append(alone(k) ? cell("td", "none", "no partner", "its row") : cell("td", "", isolated(match(k)), "its row"));
    const probability = cell("td", "n p", stated(data.probability[k]), "probability");
    if (data.probability[k] !== null) {
      const bar = document.createElement("span");
      bar.className = "bar";
      bar.style.setProperty("--p", String(data.probability[k] / 1e4));
      probability.prepend(bar);
    }
    made.append(probability);
    const has = data.other[k] >= 0;
    const likely = data.likely[k];
    const second = has ? isolated(other(k)) : likely ? "no partner" : "none";
    made.append(cell("td", has ? "" : "none", second, "best other"));
    made.append(cell("td", "n", has || likely ? stated(likely) : "", "its probability"));
    return made;
  };

  const download = byId("match-download");
  const body = byId("match-rows");
  const previous = byId("match-previous");
  const next = byId("match-next");
  const count = (number) => number.toLocaleString("en");
  const draw = () => {
    const pages = Math.max(1, Math.ceil(shown.length / PAGE));
    state.page = Math.min(Math.max(0, state.page), pages - 1);
    const from = state.page * PAGE;
    const part = shown.slice(from, from + PAGE);
    body.replaceChildren(...part.map(line));
    previous.disabled = state.page === 0;
    next.disabled = state.page >= pages - 1;
    download.disabled = shown.length === 0;
    say.textContent = part.length
      ? `${count(from + 1)} to ${count(from + part.length)} of ${count(shown.length)}`
        + (shown.length < size ? ` found among ${count(size)}` : "")
      : "Nothing fits.";
  };
  const renew = () => { state.page = 0; select(); draw(); };

  // How many rows a threshold keeps, and how many of them should be right where the link is believed.
  const weigh = () => {
    let kept = 0, check = 0, right = 0, believed = true;
    for (let k = 0; k < size; k++) {
      if (filters.kept(k)) {
        kept += 1;
        right += data.probability[k] / 1e4;
        believed &&= data.tables[data.table[k]].believed;
      } else if (filters.check(k)) check += 1;
    }
    const percent = `${Number(slider.value)}%`;
    byId("match-at").textContent = percent;
    slider.setAttribute("aria-valuetext", percent);
    const expected = kept && believed ? `, about ${count(Math.round(right))} of them expected right` : "";
    byId("match-kept").textContent =
      `At ${percent} or surer: ${count(kept)} ${kept === 1 ? "match" : "matches"}${expected}. `
      + `Below: ${count(check)} ${check === 1 ? "row" : "rows"}.`;
  };
  const move = () => {
    state.threshold = Math.round(Number(slider.value) * 100);
    weigh();
    if (state.certainty === "kept" || state.certainty === "check") renew();
  };

  // A spreadsheet must not run a label as a formula.
  const risky = /^[\s\p{Z}\p{C}]*[=+@\-\uff1d\uff0b\uff20\uff0d\ufe66\ufe62\ufe6b\ufe63]/u;
  const number = /^-?\d[\d.,]*(e[+-]?\d+)?$/i;
  const written = (label) => {
    const safe = risky.test(label) && !number.test(label) ? `'${label}` : label;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const save = () => {
    const lines = ["reference_id,table,row_id,probability,margin,second_best,second_probability"];
    const decimal = (value, unit, digits) => (value === null ? "" : (value / unit).toFixed(digits));
    for (const k of shown) {
      const name = data.tables[data.table[k]].name;
      lines.push([
        written(reference(k)), written(name), written(match(k)), decimal(data.probability[k], 1e4, 4),
        decimal(data.margin[k], 10, 1), written(other(k)), decimal(data.likely[k], 1e4, 4),
      ].join(","));
    }
    const link = document.createElement("a");
    // The mark at the start tells spreadsheets that this is UTF-8.
    link.href = URL.createObjectURL(new Blob([`\ufeff${lines.join("\n")}\n`], { type: "text/csv" }));
    link.download = "matches.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  };

  let waiting = 0;
  byId("match-search").addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.search = event.target.value; renew(); }, 120);
  });
  byId("match-certainty").addEventListener("change", (event) => { state.certainty = event.target.value; renew(); });
  const chosen = byId("match-table");
  if (chosen) chosen.addEventListener("change", () => { state.table = Number(chosen.value); renew(); });
  slider.addEventListener("input", move);
  download.addEventListener("click", save);
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
  body.addEventListener("click", (event) => {
    const made = event.target.closest("tr[data-line]");
    // Text can be marked without opening the row.
    const marking = !event.target.closest("button") && String(getSelection()) !== "";
    if (made && !marking) open(made, Number(made.dataset.line));
  });
  previous.addEventListener("click", () => { state.page -= 1; draw(); });
  next.addEventListener("click", () => { state.page += 1; draw(); });
  for (const tool of panel.querySelectorAll("[hidden]")) tool.hidden = false;
  move();
  renew();
  document.documentElement.dataset.ready = "yes";
})();
