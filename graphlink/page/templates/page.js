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
  let on = null;
  const hide = () => {
    tip.hidden = true;
    on = null;
  };
  const show = (event) => {
    const of = explained(event.target);
    if (!of || of === on) return;
    const words = text(of);
    if (!words) return hide();
    on = of;
    tip.textContent = words;
    tip.hidden = false;
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

  // tables: sort by a column, filter rows
  const sortBy = (head) => {
    const table = head.closest("table");
    const body = table.tBodies[0];
    const k = head.cellIndex;
    const numbers = head.classList.contains("n");
    const before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : numbers;
    const keyed = Array.from(body.rows, (row) => {
      const cell = row.cells[k];
      const value = cell.dataset.v;
      return [numbers ? (value === undefined ? NaN : Number(value)) : cell.textContent.trim().toLowerCase(), row];
    });
    const sign = down ? -1 : 1;
    keyed.sort(
      numbers
        ? ([a], [b]) => (Number.isNaN(a) ? (Number.isNaN(b) ? 0 : 1) : Number.isNaN(b) ? -1 : sign * (a - b))
        : ([a], [b]) => sign * (a < b ? -1 : a > b ? 1 : 0),
    );
    body.replaceChildren(...keyed.map(([, row]) => row));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".sort");
    if (button) sortBy(button.closest("th"));
  });
  for (const tools of document.querySelectorAll(".tools")) {
    const rows = tools.parentElement.querySelector("tbody").rows;
    if (rows.length < 8) continue;
    tools.hidden = false;
    const shown = tools.querySelector(".shown");
    tools.querySelector("input").addEventListener("input", (event) => {
      const wanted = event.target.value.trim().toLowerCase();
      let count = 0;
      for (const row of rows) {
        const whole = Array.from(row.querySelectorAll("[data-whole]"), (one) => one.dataset.whole).join(" ");
        row.hidden = wanted !== "" && !`${row.textContent} ${whole}`.toLowerCase().includes(wanted);
        count += !row.hidden;
      }
      shown.textContent = wanted ? `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows` : "";
    });
  }

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
