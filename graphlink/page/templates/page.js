"use strict";
(() => {
  const root = document.documentElement;
  const tip = document.getElementById("tip");
  const said = document.getElementById("said");

  // theme: as the system says, until somebody chooses
  const theme = document.querySelector(".theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => theme.setAttribute("aria-pressed", String(isDark()));
  try {
    const kept = localStorage.getItem("graphlink-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch {}
  theme.hidden = false;
  showTheme();
  system.addEventListener("change", showTheme);
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
    try {
      localStorage.setItem("graphlink-theme", root.dataset.theme);
    } catch {}
  });

  // what a figure means, or a whole name, on hover and on focus
  const explained = (target) => target.closest?.("[aria-describedby^=m-], [data-whole], td");
  const text = (of) => {
    if (of.dataset.whole) return of.dataset.whole;
    let by = of;
    if (of.tagName === "TD") by = of.closest("table").tHead.rows[0].cells[of.cellIndex].querySelector("[aria-describedby]");
    const meaning = by && document.getElementById(by.getAttribute("aria-describedby"));
    return meaning ? `${meaning.previousElementSibling.textContent}: ${meaning.textContent}` : "";
  };
  const patience = 400; // ms: nobody wants words at every cell that the pointer crosses
  let on = null;
  let soon = 0;
  const hide = () => {
    clearTimeout(soon);
    tip.hidden = true;
    on = null;
  };
  const show = (event) => {
    const of = explained(event.target);
    if (!of || of === on) return;
    hide();
    if (!text(of)) return;
    on = of;
    if (of.tagName === "TD") soon = setTimeout(tell, patience, of);
    else tell(of);
  };
  const tell = (of) => {
    tip.textContent = text(of);
    tip.hidden = false;
    tip.classList.toggle("pass", of.tagName === "TD");
    const at = of.getBoundingClientRect();
    const below = at.bottom + tip.offsetHeight + 8 < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(at.left, root.clientWidth - tip.offsetWidth - 8)) + scrollX}px`;
    tip.style.top = `${(below ? at.bottom + 6 : Math.max(at.top - tip.offsetHeight - 6, 4)) + scrollY}px`;
  };
  const leave = (event) => {
    if (on && !on.contains(event.relatedTarget) && event.relatedTarget !== tip && !tip.contains(event.relatedTarget)) hide();
  };
  document.addEventListener("mouseover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("mouseout", leave);
  document.addEventListener("focusout", leave);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());

  // copying: a command, or a query that leads to a place in the timeline
  const place = (ns) => {
    const at = BigInt(ns);
    return `select ts, dur, track_id, name from slice where ts between ${at - 2000n} and ${at + 2000n} order by abs(ts - ${at}), dur desc`;
  };
  const copied = (button, worked) => {
    said.textContent = worked ? "Copied" : "Could not copy";
    const before = button.textContent;
    button.textContent = worked ? "copied" : "failed";
    setTimeout(() => (button.textContent = before === "copied" || before === "failed" ? "copy" : before), 1200);
  };
  const copy = async (value) => {
    try {
      await navigator.clipboard.writeText(value);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = value;
      document.body.append(area);
      area.select();
      const worked = document.execCommand("copy");
      area.remove();
      return worked;
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.(".copy");
    if (button) copied(button, await copy(button.dataset.copy ?? place(button.dataset.place)));
  });

  // tables: sort by a column, filter rows; of many rows only some are in the document at a time
  const most = 200;
  const tables = new Map();
  const count = (number) => number.toLocaleString("en");
  const words = (row) => {
    const whole = Array.from(row.querySelectorAll("[data-whole]"), (one) => one.dataset.whole).join(" ");
    return `${row.textContent} ${whole}`.toLowerCase();
  };
  const fill = (of) => {
    const found = of.wanted ? of.rows.filter((row) => words(row).includes(of.wanted)) : of.rows;
    of.body.replaceChildren(...found.slice(0, of.limit));
    of.more.hidden = found.length <= of.limit;
    const first = found.length > of.limit ? `the first ${count(of.limit)} of ` : "";
    const some = of.wanted ? `${first}${count(found.length)} of ${count(of.rows.length)} rows` : `${first}${count(found.length)} rows`;
    of.shown.textContent = of.wanted || first ? some : "";
  };
  for (const box of document.querySelectorAll(".table")) {
    const body = box.querySelector("tbody");
    const of = { body, rows: Array.from(body.rows), wanted: "", limit: most };
    of.more = box.querySelector(".more");
    of.shown = box.querySelector(".shown");
    tables.set(box.querySelector("table"), of);
    of.more.addEventListener("click", () => {
      of.limit += most;
      fill(of);
    });
    if (of.rows.length > most) fill(of);
    if (of.rows.length < 8) continue;
    box.querySelector(".tools").hidden = false;
    box.querySelector("input").addEventListener("input", (event) => {
      of.wanted = event.target.value.trim().toLowerCase();
      fill(of);
    });
  }
  const sortBy = (head) => {
    const of = tables.get(head.closest("table"));
    const k = head.cellIndex;
    const numbers = head.classList.contains("n");
    const before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : numbers;
    const sign = down ? -1 : 1;
    const value = (row) => {
      const cell = row.cells[k];
      return numbers ? Number(cell.dataset.v ?? NaN) : cell.textContent.trim().toLowerCase();
    };
    const order = numbers
      ? ([a], [b]) => (Number.isNaN(a) ? (Number.isNaN(b) ? 0 : 1) : Number.isNaN(b) ? -1 : sign * (a - b))
      : ([a], [b]) => sign * (a < b ? -1 : a > b ? 1 : 0);
    of.rows = of.rows
      .map((row) => [value(row), row])
      .sort(order)
      .map(([, row]) => row);
    fill(of);
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".sort");
    if (button) sortBy(button.closest("th"));
  });

  // paper shows what is folded away
  const folded = () => Array.from(document.querySelectorAll("details:not([open])"));
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = folded();
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });

  // the section in view, in the contents
  const links = new Map(Array.from(document.querySelectorAll(".toc a"), (link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        for (const link of links.values()) link.removeAttribute("aria-current");
        links.get(entry.target.id)?.setAttribute("aria-current", "location");
      }
    },
    { rootMargin: "-10% 0px -80% 0px" },
  );
  for (const section of document.querySelectorAll("main > section")) seen.observe(section);
})();
