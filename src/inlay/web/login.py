"""Asking for an API key where the service wants one."""

from __future__ import annotations

from fastapi import Request
from nicegui import ui

from inlay.web.shell import frame, heading

__all__ = ["show"]

# To where the visitor came from, if that is a page of ours.
_GO_ON = """
  const next = new URLSearchParams(location.search).get('next') || '/';
  const to = URL.canParse(next, location.origin) ? new URL(next, location.origin) : location;
  location.replace(to.origin === location.origin && to.pathname !== location.pathname ? to.href : '/');
"""
# The key goes from the browser straight to the HTTP interface, whose answer sets a cookie that no script reads.
_SIGN_IN = f"""async () => {{
  const box = document.querySelector('input[name=key]'), told = document.getElementById('told');
  told.textContent = '';
  const answer = await fetch('/v1/session', {{method: 'POST', headers: {{'Content-Type': 'application/json'}},
    body: JSON.stringify({{key: box.value}})}});
  if (answer.ok) {{ {_GO_ON} }} else {{
    told.textContent = answer.status === 401 ? 'That key is not valid.' : (await answer.json()).detail;
    box.focus();
  }}
}}"""
# A link on another site's page brings no cookie along: asked from here, the browser sends the one that it may have.
_COME_BACK = f"""(async () => {{
  if (location.search.includes('next=') && (await fetch('/v1/datasets?limit=1')).ok) {{ {_GO_ON} }}
}})()"""


@ui.page("/login", title="Sign in · inlay")
def show(request: Request) -> None:
    with frame(request, "Sign in", navigation=False):
        heading("Sign in", "This service wants an API key. `inlay keys create NAME` makes one.")
        with ui.card().classes("inlay-card").style("max-width: 28rem"):
            box = ui.input("API key", password=True, password_toggle_button=True).classes("w-full")
            box.props('name=key autofocus autocomplete="current-password"').on("keydown.enter", js_handler=_SIGN_IN)
            ui.element("div").props("id=told role=alert").style("color: var(--bad)")
            ui.button("Sign in").on("click", js_handler=_SIGN_IN)
        ui.run_javascript(_COME_BACK)
