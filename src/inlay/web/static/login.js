// Sign in: send the key to the HTTP API, which answers with a cookie that no script can read.
const theme = /(?:^|; )inlay_theme=(light|dark)/.exec(document.cookie)?.[1];
const isDark = theme ? theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
document.body.classList.add(isDark ? 'body--dark' : 'body--light');
const key = document.getElementById('key');
const problem = document.getElementById('problem');

// Continue to the page that the visitor came from, if this service serves it.
function proceed() {
  const next = new URLSearchParams(location.search).get('next') || '/';
  const to = URL.canParse(next, location.origin) ? new URL(next, location.origin) : location;
  location.replace(to.origin === location.origin && to.pathname !== location.pathname ? to.href : '/');
}

document.querySelector('form').addEventListener('submit', async (event) => {
  event.preventDefault();
  problem.textContent = '';
  const headers = {'Content-Type': 'application/json'};
  const answer = await fetch('/v1/session', {method: 'POST', headers, body: JSON.stringify({key: key.value})});
  if (answer.ok) return proceed();
  problem.textContent = answer.status === 401 ? 'The API key is not valid.' : (await answer.json()).detail;
  key.focus();
});
document.getElementById('show').addEventListener('change', (event) => {
  key.type = event.target.checked ? 'text' : 'password';
});

// The browser sends no cookie when it follows a link from another site. A request from this page sends the cookie.
if (location.search.includes('next=')) {
  fetch('/v1/datasets?limit=1').then((answer) => { if (answer.ok) proceed(); });
}
