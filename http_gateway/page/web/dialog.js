// Questions to the person that keep the rest of the page away until they are answered.
import {element} from './text.js';

let last = 0;

function button(className, label, action) {
  const made = element('button', className, label);
  made.type = 'button';
  made.addEventListener('click', action);
  return made;
}

// Shows a dialog; resolves to what `answer` gives if the person goes on, else to null. Focus goes back
// to where it was.
function show(title, parts, goOn, className, answer) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    const heading = element('h2', '', title);
    heading.id = `dialog-title-${++last}`;
    const dialog = document.createElement('dialog');
    dialog.setAttribute('aria-labelledby', heading.id);
    let result = null;
    const submit = element('button', className, goOn);
    submit.type = 'submit';
    const form = element('form', '', heading, ...parts,
      element('div', 'tools', button('quiet', 'Cancel', () => dialog.close()), submit));
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      result = answer();
      dialog.close();
    });
    // Escape closes the dialog, and stops no answer.
    dialog.addEventListener('keydown', (event) => event.stopPropagation());
    dialog.addEventListener('close', () => {
      dialog.remove();
      before?.focus();
      resolve(result);
    });
    dialog.append(form);
    document.body.append(dialog);
    dialog.showModal();
  });
}

export async function confirm(title, text, goOn) {
  return await show(title, [element('p', '', text)], goOn, 'main stop', () => true) !== null;
}

// Returns: the text without the space around it; null if there is none, or the person does not want.
export async function askText(title, label, value) {
  const field = element('input', '');
  field.value = value;
  field.maxLength = 200;
  field.autocomplete = 'off';
  const named = element('label', '', label, field);
  const asked = show(title, [named], 'Save', 'main', () => field.value.trim());
  field.focus();
  field.select();
  const text = await asked;
  return text === '' ? null : text;
}
