"""The style sheet of a report: light and dark, screens of any width, and paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --box: #f5f7f9; --text: #1c2127; --muted: #57606a; --rule: #d5dbe1;
  --c0: #0072b2; --c1: #b5489a; --alarm: #b3261e; --alarm-box: #fdecea;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181d; --box: #1d232a; --text: #e4e8ec; --muted: #9aa5b1; --rule: #37404a;
    --c0: #63b8f0; --c1: #e08fca; --alarm: #ff8a80; --alarm-box: #3a1c1b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem;
  background: var(--page); color: var(--text);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  -webkit-text-size-adjust: 100%;
}
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 {
  font-size: 1.2rem; margin: 2.5rem 0 .6rem; padding-top: .9rem;
  border-top: 1px solid var(--rule);
}
p { margin: .6rem 0; max-width: 46rem; overflow-wrap: anywhere; }
.muted, figcaption, .note { color: var(--muted); }
.note, figcaption { font-size: .9rem; }
.banner, .exact {
  border: 2px solid var(--alarm); background: var(--alarm-box); border-radius: 6px;
  padding: .7rem 1rem; margin: 1.2rem 0;
}
.banner { font-weight: 600; }
.banner p, .exact p { margin: 0; }
.exact h2 { border: 0; margin: 0 0 .4rem; padding: 0; color: var(--alarm); }
.claim {
  border-left: 4px solid var(--c0); background: var(--box); border-radius: 0 6px 6px 0;
  padding: .9rem 1.1rem; margin: 1.2rem 0;
}
.claim p { margin: 0; }
.claim p + p { margin-top: .5rem; }
.claim strong { font-size: 1.1rem; overflow-wrap: anywhere; }
dl.numbers {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .7rem 1.2rem;
  margin: 1.2rem 0;
}
dl.numbers div { border-top: 1px solid var(--rule); padding-top: .35rem; }
dt { color: var(--muted); font-size: .85rem; }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table {
  border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums;
}
th, td {
  text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0;
  border-bottom: 1px solid var(--rule);
}
thead th { color: var(--muted); font-weight: 500; font-size: .85rem; vertical-align: bottom; }
tbody th { font-weight: 500; overflow-wrap: break-word; min-width: 7rem; max-width: 16rem; }
.numeric td, .numeric thead th { white-space: nowrap; }
.classes td { min-width: 8rem; }
.classes td:not(:last-child) { padding-right: 1.4rem; }
td small { display: block; color: var(--muted); white-space: nowrap; }
code, pre {
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .88rem;
}
pre {
  background: var(--box); border-radius: 6px; padding: .8rem 1rem; margin: .8rem 0;
  white-space: pre-wrap; overflow-wrap: anywhere;
}
figure { margin: 1rem 0; break-inside: avoid; }
.pictures {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr));
  gap: .5rem 2rem;
}
svg { display: block; width: 100%; overflow: visible; }
svg svg { overflow: hidden; }
.grid { stroke: var(--rule); }
.zero { stroke: var(--muted); }
.whisker { stroke: var(--c0); stroke-width: 2; }
.dot { fill: var(--c0); }
.curve { fill: none; stroke-width: 2; }
.curve.c0 { stroke: var(--c0); } .curve.c1 { stroke: var(--c1); stroke-dasharray: 6 4; }
.mark.c0 { fill: var(--c0); } .mark.c1 { fill: var(--c1); }
.level { stroke: var(--alarm); stroke-dasharray: 2 4; stroke-width: 1.5; }
.keys { font-size: .85rem; margin: .2rem 0 .4rem; }
.key { margin-right: 1.2rem; }
.key::before {
  content: ""; display: inline-block; width: 1.5rem; margin-right: .4rem; vertical-align: .25em;
  border-top: 2px solid currentColor;
}
.key.c0 { color: var(--c0); } .key.c1 { color: var(--c1); } .key.level { color: var(--alarm); }
.key.c1::before { border-top-style: dashed; } .key.level::before { border-top-style: dotted; }
.chart { display: grid; grid-template-columns: 3.6rem 1fr; grid-template-rows: 11rem 1.4rem; }
.heights { position: relative; font-size: .78rem; color: var(--muted); }
.heights span { position: absolute; right: .5rem; transform: translateY(-50%); }
.plot { height: 100%; border-left: 1px solid var(--rule); border-bottom: 1px solid var(--rule); }
.plot svg { height: 100%; }
.ticks { position: relative; height: 1.4rem; font-size: .78rem; color: var(--muted); }
.ticks span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.chart .ticks { grid-column: 2; }
.coefficients { display: grid; grid-template-columns: minmax(6rem, auto) 1fr; font-size: .92rem; }
.coefficients.whole { grid-template-columns: minmax(6rem, auto) auto auto minmax(14rem, 1fr); }
.coefficients > div { display: contents; }
.coefficients > div > * {
  padding: .25rem 1rem .25rem 0; border-bottom: 1px solid var(--rule); min-width: 0;
}
.coefficients .name { font-weight: 500; overflow-wrap: break-word; }
.coefficients .number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.coefficients .head {
  color: var(--muted); font-weight: 500; font-size: .85rem; align-self: stretch;
}
.coefficients .picture { padding-right: 0; }
.coefficients > .axis > * { border-bottom: 0; }
.dots { height: 1.4rem; }
footer {
  margin-top: 3rem; padding-top: .8rem; border-top: 1px solid var(--rule); color: var(--muted);
  font-size: .85rem;
}
@media (max-width: 40rem) {
  body { padding: 1.2rem .9rem 3rem; }
  h1 { font-size: 1.4rem; }
  pre { font-size: .78rem; padding: .6rem .7rem; }
  .coefficients.whole { grid-template-columns: 1fr auto; }
  .coefficients.whole .head { display: none; }
  .coefficients.whole > div > .name, .coefficients.whole > div > .number { border-bottom: 0; }
  .coefficients.whole > div > .interval {
    grid-column: 1 / -1; padding-top: 0; color: var(--muted);
  }
  .coefficients.whole > div > .picture { grid-column: 1 / -1; padding-top: 0; }
  .coefficients.whole > .axis > .name, .coefficients.whole > .axis > .number { display: none; }
}
@media print {
  :root {
    --page: #fff; --box: #f5f7f9; --text: #000; --muted: #444; --rule: #bbb;
    --c0: #0072b2; --c1: #b5489a; --alarm: #b3261e; --alarm-box: #fff;
  }
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2 { break-after: avoid; }
  tr, .coefficients > div, .claim, .banner, .exact { break-inside: avoid; }
  .scroll { overflow: visible; }
}
"""
"""Inline, as the page is one file; no font and no picture is fetched from elsewhere."""
