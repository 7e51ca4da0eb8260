// Puts text where it can be pasted from.

// Browsers have the first way for pages of this machine and of https only.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const focused = document.activeElement;
  const field = document.createElement('textarea');
  field.className = 'unseen';
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand('copy');
  field.remove();
  focused?.focus();
  return isCopied;
}

// A button that copies what `text()` gives when it is pressed, and says so on itself for a moment.
export function copyButton(label, text) {
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'small';
  button.textContent = 'Copy';
  button.setAttribute('aria-label', label);
  button.addEventListener('click', async () => {
    const said = await copyText(text()) ? 'Copied' : 'Not copied';
    button.textContent = said;
    button.setAttribute('aria-label', `${said}: ${label}`);
    setTimeout(() => {
      button.textContent = 'Copy';
      button.setAttribute('aria-label', label);
    }, 2000);
  });
  return button;
}
