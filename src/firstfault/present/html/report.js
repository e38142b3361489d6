
"use strict";
// The table of calls, its filters, and the strips. All text goes in as text: no markup is ever made of it.
(() => {
  const FIELDS = ["process", "n", "op", "thread", "t", "ns", "state", "depth", "site", "ended",
    "nanIn", "nanOut", "infIn", "infOut", "magnitude", "more", "given", "gave"];
  const ROW = 26, OVERSCAN = 12, MOST_BINS = 400;
  const SVG = "http://www.w3.org/2000/svg";
  const data = JSON.parse(document.getElementById("data").textContent);
  const text = (number) => data.texts[number];
  const calls = data.calls.map((row) => Object.fromEntries(FIELDS.map((name, index) => [name, row[index]])));
  const $ = (id) => document.getElementById(id);
  const list = $("list");
  if (!list) return;

  const element = (name, className, content) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (content !== undefined) made.textContent = content;
    return made;
  };
  const drawn = (name, attributes, content) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (content !== undefined) made.textContent = content;
    return made;
  };
  const count = (number) => number.toLocaleString("en-US");
  const several = data.processes.length > 1;

  // --- what a call is found by

  const mark = (call) => (Object.hasOwn(data.marks[call.process], call.n) ? data.marks[call.process][call.n] : "");
  const state = (call) => data.states[call.state];
  const bad = (call) => call.nanIn + call.nanOut + call.infIn + call.infOut > 0;
  const words = (call) => {
    call.words ??= [text(call.op), text(call.site), text(call.ended), state(call), `call ${call.n}`,
      ...call.given.map(text), ...call.gave.map(text)].join("\n").toLowerCase();
    return call.words;
  };
  const WHICH = {
    "": () => true,
    bad,
    unfinished: (call) => state(call) !== "returned",
    marked: (call) => mark(call) !== "",
  };

  let shown = calls;
  let chosen = null;

  function filter() {
    const terms = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const [op, process, which] = [$("op").value, $("process").value, WHICH[$("which").value]];
    shown = calls.filter((call) => (op === "" || call.op === Number(op))
      && (process === "" || call.process === Number(process))
      && which(call) && terms.every((term) => words(call).includes(term)));
    $("count").textContent = shown.length === calls.length ? `${count(calls.length)} calls`
      : `${count(shown.length)} of ${count(calls.length)} calls`;
    list.scrollTop = 0;
    rows();
    strips();
  }

  // --- the table: only the rows in view exist

  function rows() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - OVERSCAN);
    const last = Math.min(shown.length, first + Math.ceil(list.clientHeight / ROW) + 2 * OVERSCAN);
    const made = [spacer(first), ...shown.slice(first, last).map(row), spacer(shown.length - last)];
    if (!shown.length) made.push(nothing());
    $("rows").replaceChildren(...made);
  }

  function spacer(missing) {
    const made = element("tr", "spacer");
    const cell = made.appendChild(element("td"));
    cell.colSpan = 7;
    cell.style.height = `${missing * ROW}px`;
    made.hidden = missing === 0;
    return made;
  }

  function nothing() {
    const made = element("tr", "none");
    made.appendChild(element("td", "", "No call matches.")).colSpan = 7;
    return made;
  }

  function row(call) {
    const made = element("tr", [mark(call), call === chosen ? "chosen" : ""].join(" ").trim());
    made.dataset.n = call.n;
    made.appendChild(element("td", "", several ? `${call.process}:${call.n}` : `${call.n}`));
    const op = made.appendChild(element("td"));
    op.title = text(call.op);
    op.appendChild(element("span", "depth", "│ ".repeat(Math.min(call.depth, 8))));
    op.append(text(call.op));
    made.appendChild(element("td", `num ${heat(call.nanOut, call.nanIn)}`, number(call.nanOut || call.nanIn)));
    made.appendChild(element("td", `num ${heat(call.infOut, call.infIn)}`, number(call.infOut || call.infIn)));
    made.appendChild(element("td", "num", call.magnitude ? call.magnitude.toPrecision(3) : ""));
    made.appendChild(element("td", "num", duration(call.ns)));
    made.appendChild(element("td", state(call) === "returned" ? "" : "hot", state(call)));
    made.addEventListener("click", () => choose(call));
    return made;
  }

  const heat = (out, given) => (out ? "hot" : given ? "warm" : "");
  const number = (value) => (value ? count(value) : "");
  function duration(ns) {
    if (!ns) return "";
    if (ns < 1e6) return `${(ns / 1e3).toFixed(0)} µs`;
    return ns < 1e9 ? `${(ns / 1e6).toFixed(1)} ms` : `${(ns / 1e9).toFixed(2)} s`;
  }

  // --- one call

  function choose(call) {
    chosen = call;
    detail(call);
    rows();
    strips();
  }

  function detail(call) {
    const where = [`call ${call.n}`, data.processes[call.process], `thread ${call.thread}`, text(call.site)];
    if (call.t) where.push(`${(call.t / 1e6).toFixed(3)} ms after the first`);
    if (call.ns) where.push(duration(call.ns));
    const made = [element("h3", "", text(call.op)), element("p", "where", where.filter(Boolean).join(" · "))];
    if (mark(call)) made.splice(1, 0, element("p", "ended", mark(call)));
    if (text(call.ended)) made.push(element("p", state(call) === "raised" ? "ended" : "where", text(call.ended)));
    made.push(...side("Given", call.given), ...side("Gave", call.gave));
    if (!call.gave.length) made.push(element("p", "hint", state(call) === "returned" ? "No result is recorded." : `It is ${state(call)}.`));
    if (call.more) made.push(element("p", "hint", `${count(call.more)} more values are left out: firstfault log prints them.`));
    $("detail").replaceChildren(...made);
    $("detail").scrollTop = 0;
  }

  function side(title, values) {
    if (!values.length) return [];
    const made = element("dl");
    for (let at = 0; at < values.length; at += 3) {
      const [name, value, statistics] = values.slice(at, at + 3).map(text);
      made.append(element("dt", "", name), element("dd", "", value));
      if (statistics) made.append(element("dd", /\bNaN|\bInf|\bnan|\binf/.test(statistics) ? "stat hot" : "stat", statistics));
    }
    return [element("h4", "", title), made];
  }

  function goTo(n, process) {
    const found = calls.find((call) => call.n === n && (process === undefined || call.process === process));
    if (!found) {
      $("detail").replaceChildren(element("p", "ended", `Call ${n} is not in this file.`));
      return;
    }
    if (!shown.includes(found)) clear();
    list.scrollTop = Math.max(0, shown.indexOf(found) * ROW - list.clientHeight / 3);
    choose(found);
  }

  function clear() {
    for (const id of ["search", "op", "process", "which"]) $(id).value = "";
    filter();
  }

  function step(by) {
    const at = shown.indexOf(chosen);
    const next = shown[Math.min(shown.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    if (!next) return;
    const top = shown.indexOf(next) * ROW;
    if (top < list.scrollTop) list.scrollTop = top;
    if (top + 3 * ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + 3 * ROW - list.clientHeight;
    choose(next);
  }

  // --- the strips: the calls of the table, in its order, from left to right

  const LANES = [
    { name: "NaN", lane: 0, className: "nan", of: (call) => call.nanOut, behind: (call) => call.nanIn },
    { name: "Inf", lane: 1, className: "inf", of: (call) => call.infOut, behind: (call) => call.infIn },
    { name: "max |x|", lane: 2, className: "magnitude", of: (call) => call.magnitude },
    { name: "host", lane: 3, className: "time", of: (call) => call.ns },
  ];
  const LEFT = 64, LANE = 42;

  function strips() {
    const svg = $("strips");
    const width = svg.clientWidth, inner = width - LEFT - 8;
    svg.setAttribute("viewBox", `0 0 ${width} ${LANE * 4 + 4}`);
    const bins = Math.max(1, Math.min(shown.length, MOST_BINS));
    const step = inner / bins;
    const at = (index) => LEFT + Math.min(bins - 1, Math.floor((index * bins) / shown.length)) * step;
    const made = LANES.flatMap((lane) => strip(lane, bins, step, width));
    shown.forEach((call, index) => {
      if (mark(call)) made.push(line(at(index) + step / 2, `mark-${mark(call)}`));
    });
    if (chosen && shown.includes(chosen)) made.push(line(at(shown.indexOf(chosen)) + step / 2, "cursor"));
    svg.replaceChildren(...made);
  }

  function strip({ name, lane, className, of, behind }, bins, step, width) {
    const bottom = LANE * (lane + 1);
    const made = [drawn("line", { class: "grid", x1: LEFT, x2: width - 8, y1: bottom, y2: bottom }),
      drawn("text", { x: 8, y: bottom - 6 }, name)];
    const heights = (value) => {
      const tops = new Array(bins).fill(0);
      shown.forEach((call, index) => {
        const bin = Math.min(bins - 1, Math.floor((index * bins) / shown.length));
        tops[bin] = Math.max(tops[bin], value(call));
      });
      return tops;
    };
    const front = heights(of), back = behind ? heights(behind) : [];
    const used = [...front, ...back].filter((value) => value > 0).map(Math.log10);
    if (!used.length) {
      made.push(drawn("text", { x: LEFT + 4, y: bottom - 6 }, name === "max |x|" ? "no statistics" : "none"));
      return made;
    }
    const low = Math.min(...used), span = Math.max(...used) - low || 1;
    const bar = (value, bin, extra) => {
      if (!(value > 0)) return;
      const height = 5 + ((Math.log10(value) - low) / span) * (LANE - 12);
      made.push(drawn("rect", { class: `${className}${extra}`, x: LEFT + bin * step, y: bottom - height, width: Math.max(1, step - (step > 4 ? 1 : 0)), height }));
    };
    back.forEach((value, bin) => bar(value, bin, " given"));
    front.forEach((value, bin) => bar(value, bin, ""));
    const top = 10 ** Math.max(...used);
    made.push(drawn("text", { x: 8, y: bottom - 20 }, className === "time" ? duration(top) : top.toPrecision(3)));
    return made;
  }

  const line = (x, className) => drawn("line", { class: className, x1: x, x2: x, y1: 0, y2: LANE * 4 });

  function under(event) {
    const box = $("strips").getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - 8);
    if (share < 0 || share > 1 || !shown.length) return null;
    const size = shown.length / Math.min(shown.length, MOST_BINS);
    const from = Math.floor(Math.floor((share * shown.length) / size) * size);
    const bin = shown.slice(from, Math.max(from + 1, Math.ceil(from + size)));
    const worth = (call) => (mark(call) ? 1e30 : 0) + (call.nanOut + call.infOut) * 1e3 + call.nanIn + call.infIn;
    return bin.reduce((best, call) => (worth(call) > worth(best) ? call : best), bin[0]);
  }

  function told(call) {
    const parts = [`call ${call.n}`, text(call.op)];
    if (call.nanOut || call.nanIn) parts.push(`NaN ${count(call.nanIn)} in, ${count(call.nanOut)} out`);
    if (call.infOut || call.infIn) parts.push(`Inf ${count(call.infIn)} in, ${count(call.infOut)} out`);
    if (call.magnitude) parts.push(`max |x| ${call.magnitude.toPrecision(4)}`);
    if (call.ns) parts.push(duration(call.ns));
    return [...parts, mark(call)].filter(Boolean).join("   ");
  }

  // --- what the user does

  function options(id, all, entries) {
    $(id).append(new Option(all, ""), ...entries.map(([value, label]) => new Option(label, value)));
  }

  const byOp = new Map();
  for (const call of calls) byOp.set(call.op, (byOp.get(call.op) ?? 0) + 1);
  options("op", `all ${count(byOp.size)} operators`,
    [...byOp].sort((a, b) => b[1] - a[1]).map(([op, uses]) => [op, `${text(op)} (${count(uses)})`]));
  options("process", several ? `all ${count(data.processes.length)} processes` : "one process",
    data.processes.map((name, index) => [index, several ? `${index}: ${name}` : name]));

  $("search").addEventListener("input", filter);
  for (const id of ["op", "process", "which"]) $(id).addEventListener("change", filter);
  list.addEventListener("scroll", rows);
  list.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key];
    if (!by) return;
    event.preventDefault();
    step(by);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    event.preventDefault();
    $("search").focus();
  });
  $("goto").addEventListener("submit", (event) => {
    event.preventDefault();
    const process = $("process").value;
    goTo(Number($("number").value), process === "" ? undefined : Number(process));
  });
  for (const link of document.querySelectorAll("[data-call]")) {
    const go = () => {
      const process = link.dataset.process;
      $("calls").scrollIntoView({ block: "start" });
      goTo(Number(link.dataset.call), process === undefined ? undefined : Number(process));
    };
    link.addEventListener("click", (event) => { event.preventDefault(); go(); });
    link.addEventListener("keydown", (event) => { if (event.key === "Enter" && link.tagName !== "A") go(); });
  }
  for (const code of document.querySelectorAll(".next code, .finding dd:last-child > code")) {
    const button = element("button", "copy", "copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "selected";
      }
    });
    code.after(button);
  }
  $("strips").addEventListener("mousemove", (event) => {
    const call = under(event);
    $("hover").textContent = call ? told(call) : "";
  });
  $("strips").addEventListener("mouseleave", () => { $("hover").textContent = ""; });
  $("strips").addEventListener("click", (event) => {
    const call = under(event);
    if (call) goTo(call.n, call.process);
  });
  addEventListener("resize", () => { rows(); strips(); });

  filter();
  const first = calls.find((call) => mark(call) === "culprit") ?? calls.find((call) => mark(call));
  if (first) goTo(first.n, first.process);
  else list.scrollTop = list.scrollHeight;
})();
