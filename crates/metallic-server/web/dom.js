// Small helpers for building DOM nodes. Nothing here, or anywhere on the page, parses a string as HTML.

export const $ = (id) => document.getElementById(id);

/** An element: properties that begin with `on` are listeners, `class` and names with a dash are attributes, the rest are properties. */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'class' || name.includes('-')) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SVG = 'http://www.w3.org/2000/svg';

/** A picture from the sprite in index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  const use = document.createElementNS(SVG, 'use');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  use.setAttribute('href', `#i-${name}`);
  svg.append(use);
  return svg;
}

/** A button that is only a picture: its name is for those who hear it, and the tooltip. */
export function iconButton(name, label, onclick, more) {
  return h('button', { type: 'button', class: 'ghost', title: label, 'aria-label': label, onclick, ...more }, icon(name));
}

/**
 * Makes the children of `old`, or those from one of them on, those of `fresh`, and touches only what differs: what is selected, focused or scrolled
 * stays so while an answer grows.
 */
export function patch(old, fresh, from = old.firstChild) {
  let a = from;
  let b = fresh.firstChild;
  while (b) {
    const nextB = b.nextSibling;
    if (!a) {
      old.append(b);
    } else {
      const nextA = a.nextSibling;
      if (a.nodeName !== b.nodeName) {
        old.replaceChild(b, a);
      } else if (a.nodeType === Node.TEXT_NODE) {
        if (b.data.startsWith(a.data)) {
          if (b.data.length > a.data.length) a.appendData(b.data.slice(a.data.length));
        } else {
          a.data = b.data;
        }
      } else if (a.nodeName !== 'BUTTON') {
        patchAttributes(a, b);
        patch(a, b);
      }
      a = nextA;
    }
    b = nextB;
  }
  while (a) {
    const next = a.nextSibling;
    a.remove();
    a = next;
  }
}

function patchAttributes(a, b) {
  for (const { name, value } of b.attributes) if (a.getAttribute(name) !== value) a.setAttribute(name, value);
  for (const { name } of [...a.attributes]) if (!b.hasAttribute(name)) a.removeAttribute(name);
}

/** Seconds as people read them. */
export const seconds = (ms) => (ms < 10000 ? `${(ms / 1000).toFixed(2)} s` : `${(ms / 1000).toFixed(1)} s`);
