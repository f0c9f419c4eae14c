"use strict";
// Text from tables is only ever put into a page as text, or as HTML that the server has escaped.
const byId = (id) => document.getElementById(id);
const whole = (number) => number.toLocaleString("en-US");

const ask = async (address, options = {}) => {
  const answer = await fetch(address, { ...options, headers: { Accept: "application/json", ...options.headers } });
  const kind = answer.headers.get("content-type") || "";
  const body = kind.includes("json") ? await answer.json() : await answer.text();
  if (!answer.ok) throw new Error(body.error || String(body));
  return body;
};
const poll = (element, act, wait = 1000) => {
  const place = byId("lost");
  let failed = 0;
  const again = async () => {
    try {
      act(await ask(element.dataset.poll));
      failed = 0;
    } catch (error) {
      failed += 1;
      if (error.name !== "TypeError") place.textContent = error.message;
    }
    // One failure may be a page that is just left.
    place.hidden = failed < 2;
    setTimeout(again, wait);
  };
  setTimeout(again, wait);
};
// New HTML replaces old only where it differs, so that nothing loses the focus.
const renew = (element, html) => {
  const fresh = document.createElement("div");
  fresh.innerHTML = html;
  if (fresh.innerHTML === element.innerHTML) return;
  const held = element.contains(document.activeElement) ? document.activeElement.textContent : null;
  element.innerHTML = html;
  if (held !== null) [...element.querySelectorAll("button, a")].find((one) => one.textContent === held)?.focus();
};

byId("invite")?.addEventListener("click", async () => {
  byId("invited").textContent = (await ask("/invite", { method: "POST" })).address;
});

const pages = {
  home() {
    const drop = byId("drop"), files = byId("files");
    const count = () => {
      const chosen = files.querySelectorAll("input:checked").length;
      byId("look").disabled = chosen < 2;
      byId("chosen").textContent = chosen < 2 ? "Choose at least two." : `${chosen} are chosen.`;
    };
    const send = async (file) => {
      const line = document.createElement("li");
      line.textContent = `${file.name}: on its way`;
      byId("arriving").append(line);
      try {
        const name = encodeURIComponent(file.name);
        const got = await ask("/upload", { method: "PUT", body: file, headers: { "X-File-Name": name } });
        const holder = document.createElement("ul");
        holder.innerHTML = got.line;
        const path = holder.querySelector("input").value;
        for (const box of files.querySelectorAll("input")) if (box.value === path) box.closest("li").remove();
        files.append(holder.firstElementChild);
        byId("nothing")?.remove();
        line.remove();
      } catch (error) {
        line.className = "error";
        line.textContent = error.message;
      }
      count();
    };
    drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("over");
      for (const file of event.dataTransfer.files) send(file);
    });
    byId("pick").addEventListener("change", (event) => {
      for (const file of event.target.files) send(file);
      event.target.value = "";
    });
    files.addEventListener("change", count);
    // Who comes back finds the files chosen as before: the browser marks them after this script.
    addEventListener("pageshow", count);
    poll(byId("jobs"), (html) => renew(byId("jobs"), html), 2000);
  },

  new() {
    const names = new Map();
    const option = (select, value) => select.append(new Option(value, value));
    const known = () => {
      // In the order of the tables: whichever is read first comes first in the map.
      const lists = [...document.querySelectorAll(".table")].map((card) => names.get(card.dataset.number));
      if (!lists.every(Boolean)) return;
      const common = lists[0].filter((name) => lists.every((list) => list.includes(name)));
      const chosen = new Set([...document.querySelectorAll("#within input:checked")].map((box) => box.value));
      const place = byId("within");
      place.replaceChildren();
      byId("no-groups").hidden = common.length > 0;
      for (const name of common) {
        const label = document.createElement("label"), box = document.createElement("input");
        Object.assign(box, { type: "checkbox", name: "within", value: name, checked: chosen.has(name) });
        label.append(box, ` ${name}`);
        place.append(label);
      }
      ["shared-a", "shared-b"].forEach((id, number) => {
        byId(id).replaceChildren();
        for (const name of lists[number]) option(byId(id), name);
      });
    };
    for (const card of document.querySelectorAll(".table")) {
      const number = card.dataset.number, place = card.querySelector(".columns"), part = card.querySelector(".part");
      const read = async () => {
        const body = new URLSearchParams({ number, file: card.querySelector("[name=file]").value });
        for (const field of card.querySelectorAll("select, .reading input")) if (field.value) body.append(field.name, field.value);
        for (const name of ["missing", "long"]) {
          const field = document.querySelector(`[name=${name}]`);
          if (name === "missing" ? field.value : field.checked) body.append(name, field.value);
        }
        place.setAttribute("aria-busy", "true");
        try { place.innerHTML = await ask("/inspect", { method: "POST", body, headers: { Accept: "text/html" } }); }
        catch (error) { place.textContent = error.message; }
        place.setAttribute("aria-busy", "false");
        const body2 = place.querySelector("tbody");
        names.set(number, body2 ? JSON.parse(body2.dataset.names) : []);
        known();
      };
      card.querySelector(".again").addEventListener("click", read);
      part?.addEventListener("change", () => {
        card.querySelector("[name=file]").value = card.dataset.path + (part.value ? `::${part.value}` : "");
        read();
      });
      read();
    }
    byId("share").addEventListener("click", () => {
      const [a, b] = [byId("shared-a").value, byId("shared-b").value];
      const field = document.querySelector("[name=shared]");
      if (a && b) field.value = `${field.value.trim()}\n${a}=${b}`.trim();
    });
  },

  job() {
    const place = byId("state");
    let before = place.dataset.state;
    poll(place, (now) => {
      renew(place, now.html);
      if (now.state === "done" && before !== "done") location.href = place.dataset.result;
      before = now.state;
      place.dataset.state = now.state;
    }, 700);
  },

  run() {
    matches();
    rows(() => false);
  },

  review() {
    let open = false;
    byId("reveal")?.addEventListener("click", () => {
      open = !open;
      byId("reveal").setAttribute("aria-pressed", String(open));
      for (const one of document.querySelectorAll(".chance")) one.hidden = !open;
    });
    document.addEventListener("keydown", (event) => {
      const typing = event.target.matches("input, textarea, select") || byId("row").open;
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const target = document.querySelector(`[data-key="${CSS.escape(event.key.toLowerCase())}"]`);
      if (!target) return;
      event.preventDefault();
      if (target.matches("input")) target.focus(); else target.click();
    });
    // One answer for one question, however often a key is pressed.
    for (const form of document.forms) {
      form.addEventListener("submit", (event) => { if (form.dataset.sent) event.preventDefault(); form.dataset.sent = "yes"; });
    }
    const field = byId("partner"), at = byId("main").dataset.at;
    let waiting = 0;
    field?.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(async () => {
        const query = new URLSearchParams({ at, table: field.dataset.table, search: field.value });
        const found = await ask(`/run/ids?${query}`);
        byId("ids").replaceChildren(...found.map((id) => new Option(id, id)));
      }, 150);
    });
    rows(() => !open);
  },
};

// A row and its partner, in a window of its own.
const rows = (blind) => {
  const dialog = byId("row");
  const at = byId("match-panel")?.dataset.at ?? byId("main").dataset.at;
  const open = async (query) => {
    const address = `/run/row?${new URLSearchParams({ at, blind: blind(), ...query })}`;
    try { byId("row-part").innerHTML = await ask(address, { headers: { Accept: "text/html, application/json;q=0.1" } }); }
    catch (error) { byId("row-part").textContent = error.message; }
    if (!dialog.open) dialog.showModal();
  };
  byId("row-close").addEventListener("click", () => dialog.close());
  document.addEventListener("click", (event) => {
    const candidate = event.target.closest("[data-partner]");
    const line = event.target.closest("#match-rows tr[data-row]");
    if (candidate) open({ table: candidate.dataset.table, row: candidate.dataset.row, partner: candidate.dataset.partner });
    else if (line) open({ table: line.dataset.table, row: line.dataset.row });
  });
};

// The match table: a window over all lines, which come from the server some at a time.
const matches = () => {
  const HEIGHT = 36, PART = 100, TALLEST = 8_000_000;
  const panel = byId("match-panel"), several = panel.dataset.several === "yes";
  const view = byId("match-window"), space = byId("match-space"), table = byId("match-lines"), body = byId("match-rows");
  const state = { search: "", show: "all", threshold: 0.9, table: -1, sort: "probability", down: panel.dataset.surest === "yes" };
  let total = null, parts = new Map(), turn = 0, drawn = "";
  const heads = panel.querySelectorAll("th[data-key]");

  const part = (number) => {
    if (!parts.has(number)) {
      const query = new URLSearchParams({ at: panel.dataset.at, start: number * PART, most: PART, ...state });
      parts.set(number, ask(`/run/matches?${query}`));
      if (parts.size > 40) parts.delete(parts.keys().next().value);
    }
    return parts.get(number);
  };
  const cell = (kind, text, name = "") => {
    const made = document.createElement(kind);
    made.textContent = text;
    made.className = name;
    return made;
  };
  const line = (one, number) => {
    const made = document.createElement("tr");
    Object.assign(made.dataset, { row: one.row, table: one.table });
    made.setAttribute("aria-rowindex", number + 2);
    const first = document.createElement("th"), button = cell("button", one.id);
    first.scope = "row";
    button.type = "button";
    button.title = one.id;
    first.append(button);
    const likely = cell("td", one.probability, "n p");
    const bar = cell("span", "", "bar");
    bar.style.setProperty("--p", one.share);
    likely.prepend(bar);
    made.append(first, ...(several ? [cell("td", one.name)] : []), cell("td", one.match ?? "no partner", one.match === null ? "none" : ""),
      likely, cell("td", one.other, one.other === "no partner" ? "none" : ""), cell("td", one.likely, "n"));
    return made;
  };
  // One drawing at a time: while it waits for the server the user may scroll on, and then the newest place is drawn.
  let busy = false, moved = false;
  const draw = async () => {
    moved = true;
    if (busy) return;
    busy = true;
    while (moved) { moved = false; await drawOnce(); }
    busy = false;
  };
  const drawOnce = async () => {
    if (total === null) return;
    const mine = turn;
    const seen = Math.ceil(view.clientHeight / HEIGHT);
    const room = Math.max(1, space.offsetHeight - view.clientHeight);
    const first = Math.max(0, Math.min(total - seen + 2, Math.round((view.scrollTop / room) * (total - seen + 2))));
    const last = Math.min(total, first + seen + 2);
    const key = `${mine}:${first}:${last}`;
    if (key === drawn) return;
    const wanted = [];
    for (let number = Math.floor(first / PART); number * PART < last; number++) wanted.push(part(number));
    let got;
    try { got = await Promise.all(wanted); } catch (error) { byId("match-count").textContent = error.message; return; }
    if (mine !== turn) return;
    const lines = new Map(got.flatMap((one) => one.lines.map((entry, k) => [one.start + k, entry])));
    const fresh = [];
    for (let k = first; k < last; k++) if (lines.has(k)) fresh.push(line(lines.get(k), k));
    drawn = key;
    const held = body.contains(document.activeElement) ? document.activeElement.closest("tr").dataset.row : null;
    body.replaceChildren(...fresh);
    if (held !== null) body.querySelector(`tr[data-row="${held}"] button`)?.focus({ preventScroll: true });
    const inView = Math.min(total, first + Math.floor((view.clientHeight - table.tHead.offsetHeight) / HEIGHT));
    byId("match-count").textContent = total
      ? `${whole(first + 1)} to ${whole(inView)} of ${whole(total)}${total < got[0].all ? ` found among ${whole(got[0].all)}` : ""}`
      : "Nothing fits.";
  };
  const start = async () => {
    turn += 1;
    parts = new Map();
    const mine = turn;
    let got;
    try { got = await part(0); } catch (error) { byId("match-count").textContent = error.message; return; }
    if (mine !== turn) return;
    total = got.total;
    table.setAttribute("aria-rowcount", total + 1);
    space.style.height = `${Math.min(TALLEST, (total + 2) * HEIGHT)}px`;
    view.scrollTop = 0;
    const percent = `${Number((state.threshold * 100).toFixed(1))}%`;
    const right = got.kept && got.right !== null ? `, about ${whole(got.right)} of them expected right` : "";
    byId("match-kept").textContent = `At ${percent} or surer: ${whole(got.kept)} ${got.kept === 1 ? "match" : "matches"}${right}. Below: ${whole(got.below)} ${got.below === 1 ? "row" : "rows"}.`;
    for (const link of panel.querySelectorAll("#match-downloads a")) {
      const address = new URL(link.href);
      address.searchParams.set("threshold", state.threshold);
      link.href = address;
    }
    await draw();
    document.documentElement.dataset.ready = "yes";
  };
  let frame = 0;
  view.addEventListener("scroll", () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(draw);
  });
  new ResizeObserver(draw).observe(view);
  let waiting = 0;
  const later = () => { clearTimeout(waiting); waiting = setTimeout(start, 150); };
  byId("match-search").addEventListener("input", (event) => { state.search = event.target.value; later(); });
  byId("match-certainty").addEventListener("change", (event) => { state.show = event.target.value; start(); });
  byId("match-table")?.addEventListener("change", (event) => { state.table = Number(event.target.value); start(); });
  byId("match-threshold").addEventListener("input", (event) => {
    const percent = `${Number(event.target.value)}%`;
    byId("match-at").textContent = percent;
    event.target.setAttribute("aria-valuetext", percent);
    state.threshold = Number((Number(event.target.value) / 100).toFixed(4));
    later();
  });
  for (const head of heads) {
    head.querySelector("button").addEventListener("click", () => {
      const key = head.dataset.key;
      // Up, down, and back to the order of the reference.
      if (state.sort !== key) [state.sort, state.down] = [key, false];
      else if (!state.down) state.down = true;
      else [state.sort, state.down] = ["", false];
      for (const one of heads) one.removeAttribute("aria-sort");
      if (state.sort) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      start();
    });
  }
  start();
};

pages[document.body.dataset.page]?.();
// The page of a run is ready when its matches are there.
if (document.body.dataset.page !== "run") document.documentElement.dataset.ready = "yes";
