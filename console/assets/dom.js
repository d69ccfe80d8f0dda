// Making and updating elements. Text only ever goes in as text: there is no HTML from strings in this console.

const SVG = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

const plain = (attributes) => attributes && !(attributes instanceof Node) && attributes.constructor === Object;

/** el("p", {class: "note"}, "text", node, [more]); attributes may be left out. */
export function el(name, attributes, ...children) {
  const given = plain(attributes);
  return build(document.createElement(name), given ? attributes : {}, given ? children : [attributes, ...children]);
}

export function svg(name, attributes, ...children) {
  return build(document.createElementNS(SVG, name), attributes, children);
}

/** Make `node` hold these children, touching only what differs: focus, open details and scrolling stay. */
export function fill(node, ...children) {
  const wanted = document.createDocumentFragment();
  append(wanted, children);
  morph(node, wanted);
  return node;
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);
const alike = (node, other) => node.nodeType === other.nodeType && node.nodeName === other.nodeName && keyOf(node) === keyOf(other);

function morph(node, wanted) {
  const news = [...wanted.childNodes];
  let old = node.firstChild;
  for (const next of news) {
    if (old && !alike(old, next) && keyOf(next) !== null) {
      const moved = [...node.childNodes].find((child) => alike(child, next));
      if (moved) {
        node.insertBefore(moved, old);
        old = moved;
      }
    }
    if (old && alike(old, next)) {
      const following = old.nextSibling;
      if (old !== next) refresh(old, next);
      old = following;
    } else if (old && keyOf(old) === null && keyOf(next) === null) {
      const following = old.nextSibling;
      node.replaceChild(next, old);
      old = following;
    } else {
      node.insertBefore(next, old);
    }
  }
  while (old) {
    const following = old.nextSibling;
    old.remove();
    old = following;
  }
}

function refresh(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morph(old, next);
}

/** Tell a screen reader. */
export function say(text) {
  document.getElementById("said").textContent = text;
}
