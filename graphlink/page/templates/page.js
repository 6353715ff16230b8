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

  // strips: zoom by buttons, keys and dragging; what there is at a moment, under the pointer and with the arrow keys
  const units = [
    [1e9, "s"],
    [1e6, "ms"],
    [1e3, "us"],
    [1, "ns"],
  ];
  // in the unit of the end, as exact as a 500th of what is shown
  const inUnit = (ns, end, span = end) => {
    const [size, unit] = units.find(([size]) => Math.abs(end) >= size) ?? [1, "ns"];
    const digits = Math.min(Math.max(Math.ceil(Math.log10((500 * size) / Math.max(span, 1))), 0), 9);
    return `${(ns / size).toLocaleString("en", { maximumFractionDigits: digits })} ${unit}`;
  };
  const made = (name, attributes, words = "") => {
    const one = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    one.textContent = words;
    return one;
  };
  const strip = (group) => {
    const [left, wide, top, pitch, bar, ns] = group.dataset.strip.split(" ").map(Number);
    const svg = group.ownerSVGElement;
    const region = svg.closest(".scroll");
    const lanes = Array.from(group.querySelectorAll(".lane"), (one) => one.textContent);
    const paths = Array.from(group.querySelectorAll(".part"));
    const whole = paths.map((one) => one.getAttribute("d"));
    const steps = group.querySelector(".step");
    const begun = steps ? steps.getAttribute("d").match(/[\d.]+/g).map(Number) : []; // three numbers a line: x, y, height
    const axis = group.querySelector(".axis");
    const marks = axis.innerHTML;
    const under = top + pitch * lanes.length;
    const cursor = made("path", { class: "cursor", "pointer-events": "none" });
    const chosen = made("rect", { class: "chosen", y: top, height: under - top, "pointer-events": "none" });
    group.append(chosen, cursor);
    let boxes = null; // of each path, five numbers a cell: x, y, width, height, width
    const cells = () => (boxes ??= whole.map((d) => d.match(/[\d.]+/g).map(Number)));
    const least = 8 / wide; // of the run, as wide as the strip
    let from = 0;
    let to = 1;
    let at = null;
    let lane = 0;
    let anchor = null;

    const draw = () => {
      const scale = 1 / (to - from);
      const place = (x) => left + Math.min(Math.max(((x - left) / wide - from) * scale, 0), 1) * wide;
      paths.forEach((path, k) => {
        if (to - from === 1) return path.setAttribute("d", whole[k]);
        const box = cells()[k];
        const out = [];
        for (let n = 0; n < box.length; n += 5) {
          const x = place(box[n]);
          const w = place(box[n] + box[n + 2]) - x;
          if (w > 0.01) out.push(`M${x.toFixed(1)} ${box[n + 1]}h${w.toFixed(2)}v${box[n + 3]}h-${w.toFixed(2)}z`);
        }
        path.setAttribute("d", out.join(""));
      });
      const lines = [];
      for (let n = 0; n < begun.length; n += 3) {
        const x = (begun[n] - left) / wide;
        if (from <= x && x <= to) lines.push(`M${place(begun[n]).toFixed(1)} ${begun[n + 1]}v${begun[n + 2]}`);
      }
      steps?.setAttribute("d", lines.join(""));
      if (to - from === 1) axis.innerHTML = marks;
      else ticks();
      shown.textContent = to - from === 1 ? `the whole run, ${inUnit(ns, ns)}` : `${inUnit(from * ns, to * ns, (to - from) * ns)} to ${inUnit(to * ns, to * ns, (to - from) * ns)}`;
      out.disabled = earlier.disabled = later.disabled = all.disabled = to - from === 1;
      closer.disabled = to - from <= least;
      point();
    };
    const ticks = () => {
      const rough = ((to - from) * ns) / 6;
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = Math.max(power * ([1, 2, 5].find((one) => one * power >= rough) ?? 10), 1);
      axis.replaceChildren();
      for (let k = Math.ceil((from * ns) / step); k * step <= to * ns; k += 1) {
        const x = left + ((k * step) / ns - from) / (to - from) * wide;
        const side = x < left + 30 ? "" : x > left + wide - 30 ? " end" : " mid";
        axis.append(made("path", { class: "c-grid", d: `M${x} ${under - 6}v4` }));
        axis.append(made("text", { class: `c-dim num small${side}`, x, y: under + 11 }, inUnit(k * step, to * ns, (to - from) * ns)));
      }
    };
    const zoom = (factor, middle = at ?? (from + to) / 2) => {
      const length = Math.min(Math.max((to - from) * factor, least), 1);
      move(middle - ((middle - from) / (to - from)) * length, length);
    };
    const move = (start, length = to - from) => {
      from = length > 0.999 ? 0 : Math.min(Math.max(start, 0), 1 - length);
      to = length > 0.999 ? 1 : from + length;
      draw();
    };
    const words = () => {
      const x = left + at * wide;
      const y = top + lane * pitch;
      const there = [];
      cells().forEach((box, k) => {
        for (let n = 0; n < box.length; n += 5) {
          if (box[n] <= x && x < box[n] + box[n + 2] && box[n + 1] >= y - 0.05 && box[n + 1] < y + bar) {
            there.push([box[n + 3] / bar, paths[k].querySelector("title").textContent]);
          }
        }
      });
      there.sort(([a], [b]) => b - a);
      const parts = there.map(([share, name]) => `${name} ${Math.min(Math.round(100 * share), 100)} %`);
      return `${lanes[lane] ? `${lanes[lane]}, ` : ""}${inUnit(at * ns, ns, (to - from) * ns)}: ${parts.join(", ") || "not recorded"}`;
    };
    const point = () => {
      if (at === null || at < from || at > to) return cursor.setAttribute("d", "");
      const x = left + ((at - from) / (to - from)) * wide;
      cursor.setAttribute("d", `M${x} ${top - 2}V${under}M${x - 4} ${top + lane * pitch}h8M${x - 4} ${top + lane * pitch + bar}h8`);
      here.textContent = words();
    };

    const tools = document.createElement("div");
    tools.className = "zoom";
    const button = (text, name, press) => {
      const one = document.createElement("button");
      one.type = "button";
      one.textContent = text;
      one.setAttribute("aria-label", `${name}: ${region.getAttribute("aria-label")}`);
      one.title = name;
      one.addEventListener("click", press);
      tools.append(one);
      return one;
    };
    const closer = button("+", "Zoom in", () => zoom(0.5));
    const out = button("\u2212", "Zoom out", () => zoom(2));
    const earlier = button("\u2190", "Earlier", () => move(from - (to - from) / 2));
    const later = button("\u2192", "Later", () => move(from + (to - from) / 2));
    const all = button("whole run", "Show the whole run", () => move(0, 1));
    const shown = document.createElement("span");
    const here = document.createElement("p");
    here.className = "here";
    here.textContent = "Drag over a stretch to zoom in. With the keyboard: + and \u2212, and the arrows.";
    tools.append(shown);
    region.before(tools);
    region.after(here);

    const share = (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const y = ((event.clientY - box.top) / box.height) * svg.viewBox.baseVal.height;
      lane = Math.min(Math.max(Math.floor((y - top) / pitch), 0), lanes.length - 1);
      return Math.min(Math.max(from + ((x - left) / wide) * (to - from), from), to);
    };
    group.append(made("rect", { class: "ground", x: left, y: top, width: wide, height: under - top }));
    const ground = group.lastChild;
    ground.addEventListener("pointerdown", (event) => {
      at = share(event);
      point();
      if (event.pointerType !== "mouse" || event.button) return;
      anchor = at;
      ground.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    ground.addEventListener("pointermove", (event) => {
      at = share(event);
      if (anchor !== null) {
        const px = (one) => left + ((one - from) / (to - from)) * wide;
        chosen.setAttribute("x", px(Math.min(anchor, at)));
        chosen.setAttribute("width", px(Math.max(anchor, at)) - px(Math.min(anchor, at)));
      }
      point();
    });
    ground.addEventListener("pointerup", (event) => {
      if (anchor === null) return;
      const [a, b] = [Math.min(anchor, share(event)), Math.max(anchor, share(event))];
      anchor = null;
      chosen.setAttribute("width", 0);
      if ((b - a) / (to - from) > 0.01) move(a, Math.max(b - a, least));
    });
    ground.addEventListener("pointercancel", () => (anchor = null));
    const keys = {
      ArrowLeft: () => (at = Math.max((at ?? from) - (to - from) / 100, 0)),
      ArrowRight: () => (at = Math.min((at ?? from) + (to - from) / 100, 1)),
      ArrowUp: () => (lane = Math.max(lane - 1, 0)),
      ArrowDown: () => (lane = Math.min(lane + 1, lanes.length - 1)),
      "+": () => zoom(0.5),
      "=": () => zoom(0.5),
      "-": () => zoom(2),
      0: () => move(0, 1),
      Home: () => move(0, 1),
    };
    region.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      if ((event.key === "ArrowUp" || event.key === "ArrowDown") && lanes.length === 1) return;
      event.preventDefault();
      act();
      if (at === null) return;
      if (at < from || at > to) move(at - (to - from) / 2);
      point();
      said.textContent = here.textContent;
      const x = ((left + ((at - from) / (to - from)) * wide) / svg.viewBox.baseVal.width) * svg.clientWidth;
      if (x < region.scrollLeft || x > region.scrollLeft + region.clientWidth) region.scrollLeft = x - region.clientWidth / 2;
    });
    addEventListener("beforeprint", () => {
      at = null;
      move(0, 1);
    });
    draw();
  };
  document.querySelectorAll("[data-strip]").forEach(strip);

  // paper shows what is folded away, and all rows
  const folded = () => Array.from(document.querySelectorAll("details:not([open])"));
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = folded();
    for (const one of opened) one.open = true;
    for (const of of tables.values()) of.body.replaceChildren(...of.rows);
  });
  addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
    for (const of of tables.values()) fill(of);
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
