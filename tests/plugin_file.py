"""Source text of a plug-in strategy, which tests write to a file; they replace its pool."""

ANSWER = "view.allowed & False"
PLUGIN = f'''"""Nothing at all."""
from dataclasses import dataclass
from negbench import ScoreView, Strategy, tunable
PAPER = "none"
@dataclass(frozen=True)
class Mine(Strategy):
    """Nothing."""
    k: int = tunable(3, low=1, high=9)
    def pool(self, view: ScoreView):
        return {ANSWER}
'''
