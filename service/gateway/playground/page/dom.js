// Makes elements. Text becomes text nodes, never markup: model output passes through here.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `props`: attributes; `on…`: listeners; `text`: its text. Children: elements or texts. */
export function el(name, props = {}, ...children) {
  return filled(document.createElement(name), props, children);
}

/** An SVG element. */
export function svg(name, props = {}, ...children) {
  return filled(document.createElementNS(SVG, name), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null));
  return node;
}

/** The element with an id of index.html. */
export const byId = (id) => document.getElementById(id);

let count = 0;

/** An id for a label and its field. */
export const unique = (name) => `${name}-${++count}`;
