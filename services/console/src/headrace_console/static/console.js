// The console's script: refresh, charts, live view, keys. Pages also work without it, except charts and the live view.
"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const stored = (name, value) => {
    try {
      if (value === undefined) return localStorage.getItem(name);
      localStorage.setItem(name, value);
    } catch { /* no storage */ }
    return null;
  };
  let isPaused = false;

  // -- refresh: the live part of the page, while the tab is visible and the user does not work in it

  let refreshedAt = performance.now();
  let isRefreshing = false;
  let focusedLink = null;

  const isBusy = (part) => {
    const active = document.activeElement;
    if (active && part.contains(active) && active.matches("input, select, textarea, button, summary, pre")) return true;
    const selection = getSelection();
    if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return true;
    return $("details[open]", part) !== null || $("#help").open;
  };

  setInterval(() => {
    for (const each of $$("[data-age]")) {
      const age = Number(each.dataset.age) + (performance.now() - refreshedAt) / 1000;
      each.textContent = `${age.toFixed(0)} s old${isPaused ? ", paused" : ""}`;
    }
    const part = $("#live");
    if (!part || isPaused || isRefreshing || document.hidden || isBusy(part)) return;
    if (performance.now() - refreshedAt >= 1000 * Number(part.dataset.refresh || 5)) {
      isRefreshing = true;
      htmx.trigger(part, "refresh");
    }
  }, 500);

  document.addEventListener("htmx:beforeSwap", () => {
    const active = document.activeElement;
    focusedLink = active && active.matches("#live a") ? active.getAttribute("href") : null;
  });
  document.addEventListener("htmx:afterRequest", () => {
    isRefreshing = false;
    refreshedAt = performance.now();
  });
  document.addEventListener("htmx:afterSettle", () => {
    if (focusedLink !== null) {
      const again = $$("#live a").find((each) => each.getAttribute("href") === focusedLink);
      if (again) again.focus({ preventScroll: true });
      focusedLink = null;
    }
    prepare();
  });

  // -- charts

  const plots = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => {
    const units = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
    for (const [size, unit] of units) if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)} ${unit}`;
    return `${+value.toPrecision(3)}`;
  };
  const draw = (figure) => {
    const data = JSON.parse(figure.dataset.chart);
    const place = $(".plot", figure);
    place.replaceChildren();
    const axis = (more) => ({
      stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") }, ...more,
    });
    const colours = [colour("--accent"), colour("--second")];
    const values = (_, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick)));
    const second = data.series.find((each) => each.scale);
    const axes = [axis({}), axis({ values, size: 56 })];
    if (second) axes.push(axis({ values, size: 56, side: 1, scale: second.scale, grid: { show: false } }));
    const scales = { x: { time: true } };
    for (const each of data.series) {
      scales[each.scale || "y"] = { range: (_, low, high) => [0, Math.max(1, (high || 0) * 1.1)] };
    }
    const plot = new uPlot({
      width: Math.max(240, place.clientWidth), height: 190, tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "Etc/UTC"),
      scales, axes, legend: { live: false }, cursor: { drag: { x: false, y: false } },
      series: [{}, ...data.series.map((each, number) => ({
        label: each.label, scale: each.scale || "y", stroke: colours[number], width: 2, points: { show: false },
        dash: number ? [5, 3] : undefined,
      }))],
    }, [data.x, ...data.series.map((each) => each.values)], place);
    plots.set(figure, plot);
  };
  const drawAll = () => {
    for (const [figure, plot] of plots) if (!figure.isConnected) { plot.destroy(); plots.delete(figure); }
    for (const figure of $$("[data-chart]")) {
      const before = plots.get(figure);
      if (before) before.destroy();
      draw(figure);
    }
  };
  addEventListener("resize", () => {
    for (const [figure, plot] of plots) {
      plot.setSize({ width: Math.max(240, $(".plot", figure).clientWidth), height: 190 });
    }
  });

  // -- set up a new part of the page

  const prepare = () => {
    drawAll();
    for (const button of $$("button.copy")) {
      if (!navigator.clipboard) break;
      button.hidden = false;
      button.onclick = async () => {
        await navigator.clipboard.writeText($("code", button.parentElement).textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      };
    }
  };

  const chooseWay = () => {
    const form = $("form.find");
    if (!form) return;
    const chosen = $("input[name=by]:checked", form).value;
    for (const label of $$("[data-way]", form)) label.hidden = label.dataset.way !== chosen;
    $("[name=partition]", form).placeholder = chosen === "key" ? "of the key" : "all";
  };

  // -- live view

  const tail = $("#tail");
  if (tail) {
    const rowsMax = 200;
    const body = $("#tail-rows");
    const state = $("#tail-state");
    const toggle = $("#tail-toggle");
    let source = null;
    let seen = 0;
    let isStopped = false;

    const cell = (text, className) => {
      const td = document.createElement("td");
      if (className) td.className = className;
      td.textContent = text;
      return td;
    };
    const field = (shown) => {
      const td = document.createElement("td");
      const inner = document.createElement(shown.kind === "null" || shown.kind === "empty" ? "span" : "code");
      inner.className = inner.tagName === "SPAN" ? "none" : `data ${shown.kind}`;
      inner.textContent = inner.tagName === "SPAN" ? shown.kind : shown.text + (shown.cut ? "…" : "");
      td.append(inner);
      return td;
    };
    const add = (row) => {
      const tr = document.createElement("tr");
      const link = document.createElement("a");
      const place = new URLSearchParams({ topic: tail.dataset.topic, partition: row.partition, offset: row.offset });
      link.href = `${tail.dataset.record}?${place}`;
      link.className = "row";
      link.textContent = row.offset;
      link.setAttribute("aria-label", `Record ${row.partition}, ${row.offset}`);
      const where = cell("", "n");
      where.append(link);
      tr.append(cell(row.time, "time"), cell(row.partition, "n"), where, field(row.key), field(row.value));
      body.prepend(tr);
      while (body.rows.length > rowsMax) body.lastElementChild.remove();
    };
    const close = (text) => {
      if (source) source.close();
      source = null;
      state.textContent = text;
    };
    const open = () => {
      if (source || isStopped || document.hidden) return;
      state.textContent = "Connecting";
      source = new EventSource(tail.dataset.events);
      source.addEventListener("begun", () => { state.textContent = "Live"; });
      source.addEventListener("records", (event) => {
        const found = JSON.parse(event.data);
        for (const row of found.rows) add(row);
        seen += found.rows.length + found.skipped;
        const skipped = found.skipped ? `, ${found.skipped} not shown in the last second` : "";
        $("#tail-count").textContent = `${seen} records${skipped}`;
      });
      source.addEventListener("failed", (event) => { stop(event.data); });
      source.addEventListener("ended", () => { stop("The live view ended; press Go on"); });
      source.onerror = () => {
        if (source && source.readyState === EventSource.CLOSED) stop("The console refused the live view: too many are open, the topic is gone, or you are signed out");
        else state.textContent = "Connecting again";
      };
    };
    const stop = (text) => {
      isStopped = true;
      close(text);
      toggle.textContent = "Go on";
    };
    toggle.addEventListener("click", () => {
      if (isStopped) { isStopped = false; toggle.textContent = "Pause"; open(); } else stop("Paused");
    });
    document.addEventListener("visibilitychange", () => {
      if (document.hidden && source) close("Paused while the tab is hidden");
      else open();
    });
    addEventListener("pagehide", () => close("Closed"));
    open();
  }

  // -- keys

  const keysAreOn = () => stored("headrace-keys") !== "off";
  let before = "";
  const move = (step) => {
    const rows = $$("a.row");
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step))].focus();
  };
  const actions = {
    "/": () => { const field = $("[data-search]"); if (field) { field.focus(); field.select(); } },
    "?": () => $("#help").showModal(),
    j: () => move(1),
    k: () => move(-1),
    n: () => { const link = $("a[rel=next]"); if (link) link.click(); },
    p: () => { const link = $("a[rel=prev]"); if (link) link.click(); },
    ".": () => { const toggle = $("#tail-toggle"); if (toggle) toggle.click(); else isPaused = !isPaused; },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keysAreOn() || $("#help").open) return;
    if (event.target.matches("input:not([type=checkbox], [type=radio]), textarea, select")) return;
    const second = before === "g" ? $(`nav [data-key="${CSS.escape(event.key)}"]`) : null;
    before = before === "g" ? "" : event.key;
    if (second) { event.preventDefault(); second.click(); return; }
    if (Object.hasOwn(actions, event.key)) { event.preventDefault(); actions[event.key](); }
  });

  // -- buttons that only the script can serve

  const theme = $("#theme");
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const wanted = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = wanted;
    stored("headrace-theme", wanted);
    nameTheme();
    drawAll();
  });
  nameTheme();
  $("#help-open").hidden = false;
  $("#help-open").addEventListener("click", () => $("#help").showModal());
  const keysOn = $("#keys-on");
  keysOn.checked = keysAreOn();
  keysOn.addEventListener("change", () => stored("headrace-keys", keysOn.checked ? "on" : "off"));
  document.addEventListener("change", (event) => { if (event.target.name === "by") chooseWay(); });

  chooseWay();
  prepare();
})();
