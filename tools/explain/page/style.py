"""The style sheet of the page: light and dark, wide and narrow."""

_LIGHT = """--ink: #1b1f24; --soft: #5d6670; --paper: #ffffff; --panel: #f6f8fa; --grid: #d5dae0; --link: #1f5fa8; --mark: #fff3c4;
  --blue: #1f5fa8; --orange: #c9651b; --green: #2f7d40; --violet: #7a4fb5; --grey: #77808a;"""
_DARK = """--ink: #e2e6eb; --soft: #a2abb5; --paper: #14171b; --panel: #1d2127; --grid: #383f48; --link: #7db4f0; --mark: #4a3f12;
  --blue: #5c9ce6; --orange: #e8914d; --green: #58b06c; --violet: #a884e0; --grey: #98a2ad;"""

STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
* {{ box-sizing: border-box }}
body {{ font: 14px/1.45 system-ui, sans-serif; margin: 0; color: var(--ink); background: var(--paper) }}
main {{ max-width: 1500px; margin: 0 auto; padding: 1em }}
nav {{ background: var(--panel); padding: .6em 1em; font-size: 13px; max-height: 40vh; overflow: auto }}
nav ul {{ list-style: none; margin: 0; padding: 0 }} nav ul ul {{ padding-left: 1em }} nav b {{ display: block; margin-bottom: .3em }}
@media (min-width: 1100px) {{
  body {{ display: grid; grid-template-columns: 210px minmax(0, 1fr) }}
  nav {{ position: sticky; top: 0; height: 100vh; max-height: none }}
  main {{ width: 100%; padding: 1em 2em }}
}}
a {{ color: var(--link); text-decoration: none }} a:hover {{ text-decoration: underline }}
h1 {{ font-size: 1.6em; margin: .2em 0 .5em }} h3 {{ margin: 1.6em 0 .4em }} h1, h2, h3 {{ overflow-wrap: anywhere }}
h2 {{ margin-top: 2em; border-bottom: 2px solid var(--blue) }}
.table, .picture {{ overflow-x: auto; max-width: 100% }}
table {{ border-collapse: collapse; font-size: 13px; width: max-content }}
th, td {{ padding: .25em .7em; vertical-align: top; overflow-wrap: break-word }} td {{ max-width: 26em }}
th {{ text-align: left; border-bottom: 1px solid var(--soft); white-space: nowrap }} td {{ border-bottom: 1px solid var(--grid) }}
td.n {{ text-align: right; white-space: nowrap }}
p {{ margin: .3em 0; white-space: pre-wrap; overflow-wrap: anywhere }}
p.step {{ font-weight: 600; margin-top: 1em }} p.detail {{ padding-left: 2.2em; text-indent: -1.2em }} p.there {{ color: var(--soft) }}
pre {{ font-size: 12px; overflow-x: auto; background: var(--panel); padding: .6em }}
pre a {{ color: inherit; border-left: 3px solid var(--link); padding-left: 2px; margin-left: -5px }}
.bar {{ background: var(--green); height: .8em; margin-top: .3em }}
details.lines {{ margin-left: 1em }} details {{ margin: .4em 0 }} summary {{ cursor: pointer }}
svg {{ margin: 1em 0; display: block }}
:target {{ background: var(--mark); scroll-margin-top: 3em }} svg :target rect {{ stroke-width: 5 }}
"""
