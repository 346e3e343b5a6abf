"use strict";
(() => {
  document.documentElement.classList.add("scripted");

  // Tables: a click on a title sorts up, the next one down, the third restores the order.
  const NEXT = { none: "ascending", ascending: "descending", descending: "none" };
  const collator = new Intl.Collator("en", { numeric: true });

  function keyOf(row, column) {
    const cell = row.cells[column];
    if (cell.dataset.value === undefined) return cell.textContent.trim();
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  }

  function sorted(rows, column, direction) {
    const keyed = rows.map((row) => ({ row, key: keyOf(row, column) }));
    const numeric = keyed.some(({ key }) => typeof key === "number");
    // What is unknown is neither the least nor the most: it comes last either way.
    const known = ({ key }) => (numeric ? typeof key === "number" : key !== "" && key !== "—");
    const sign = direction === "ascending" ? 1 : -1;
    const order = numeric ? (a, b) => a - b : collator.compare;
    const ordered = keyed.filter(known).sort((a, b) => sign * order(a.key, b.key));
    return [...ordered, ...keyed.filter((entry) => !known(entry))].map(({ row }) => row);
  }

  function makeSortable(table) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    if (rows.length < 2) return;
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const direction = NEXT[head.getAttribute("aria-sort") ?? "none"];
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        if (direction !== "none") head.setAttribute("aria-sort", direction);
        body.append(...(direction === "none" ? rows : sorted(rows, column, direction)));
      });
    });
  }

  // Matrices: one cell of each is in the tab order; arrow keys go on from there.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  // The cell's own name says the same.
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);

  function show(cell) {
    tip.textContent = cell.getAttribute("aria-label");
    tip.hidden = false;
    const at = cell.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const below = at.bottom + 6;
    const fits = below + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${fits ? below : Math.max(0, at.top - tip.offsetHeight - 6)}px`;
  }

  const hide = () => { tip.hidden = true; };

  // After scrolling, show the cell below the pointer, or else the cell that has the focus.
  function showCurrent() {
    const cell = document.querySelector(".matrix td[aria-label]:hover") ??
      document.activeElement.closest("td[aria-label]");
    if (cell) show(cell); else hide();
  }

  function target(cell, event) {
    const row = cell.parentElement;
    const rows = row.parentElement.rows;
    const last = row.cells.length - 1;
    let [i, j] = [row.sectionRowIndex, cell.cellIndex];
    switch (event.key) {
      case "ArrowUp": i -= 1; break;
      case "ArrowDown": i += 1; break;
      case "ArrowLeft": j -= 1; break;
      case "ArrowRight": j += 1; break;
      case "Home": j = 1; if (event.ctrlKey) i = 0; break;
      case "End": j = last; if (event.ctrlKey) i = rows.length - 1; break;
      default: return null;
    }
    return rows[Math.max(0, Math.min(rows.length - 1, i))].cells[Math.max(1, Math.min(last, j))];
  }

  function makeExplorable(table) {
    table.setAttribute("role", "grid");
    let current = table.tBodies[0].rows[0].cells[1];
    current.tabIndex = 0;
    table.addEventListener("mouseover", (event) => {
      const cell = event.target.closest("td[aria-label]");
      if (cell) show(cell); else hide();
    });
    table.addEventListener("mouseleave", showCurrent);
    table.addEventListener("focusin", (event) => show(event.target));
    table.addEventListener("focusout", hide);
    table.addEventListener("keydown", (event) => {
      const cell = target(event.target, event);
      if (!cell) return;
      event.preventDefault();
      cell.tabIndex = 0;
      cell.focus();
      if (cell !== current) current.removeAttribute("tabindex");
      current = cell;
    });
  }

  // A figure is as wide as the page. On a small screen that is too small to read it.
  function makeEnlargeable(figure) {
    const button = document.createElement("button");
    button.type = "button";
    const narrow = figure.querySelector("source");
    const media = narrow?.media;
    const label = () => {
      const large = figure.classList.contains("large");
      button.textContent = large ? "Fit to the page" : "Full size";
      if (narrow) narrow.media = large ? "not all" : media;
    };
    button.addEventListener("click", () => { figure.classList.toggle("large"); label(); });
    label();
    figure.append(button);
  }

  // Time lines: a wider one scrolls. What is in the middle, or below the pointer, stays there.
  function makeZoomable(figure) {
    const view = figure.querySelector(".lanes");
    const lanes = view.firstElementChild;
    let zoom = 1;
    const by = (factor, x = view.clientWidth / 2) => {
      const at = (view.scrollLeft + x) / zoom;
      zoom = Math.min(500, Math.max(1, zoom * factor));
      lanes.style.width = `${100 * zoom}%`;
      view.scrollLeft = at * zoom - x;
    };
    for (const [text, factor] of [["Zoom in", 2], ["Zoom out", 0.5], ["All", 0]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.addEventListener("click", () => by(factor));
      figure.append(button);
    }
    view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      by(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - view.getBoundingClientRect().left);
    }, { passive: false });
  }

  document.querySelectorAll("figure:not(.timeline)").forEach(makeEnlargeable);
  document.querySelectorAll("figure.timeline").forEach(makeZoomable);
  document.querySelectorAll("table.data").forEach(makeSortable);
  document.querySelectorAll("table.matrix").forEach(makeExplorable);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("scroll", showCurrent, { capture: true, passive: true });
})();
