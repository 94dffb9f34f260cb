function draw() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink").trim(), soft = style.getPropertyValue("--soft").trim();
  const line = style.getPropertyValue("--line").trim();
  const axis = {labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: "normal"};
  const config = {background: null, axis, legend: {labelColor: ink, titleColor: ink}, view: {stroke: null}, font: "system-ui, sans-serif"};
  for (const [key, spec] of Object.entries(specs)) {
    const wide = {...spec, width: "container", autosize: {type: "fit-x", contains: "padding"}};
    wide.config = {...(spec.config || {}), ...config};
    vegaEmbed(document.getElementById(key), wide, {renderer: "svg", actions: false});
  }
}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
