"""Fixed names and numbers of the protocol, without torch: who reads results needs them too."""

KINDS = ("composed", "visual", "textual", "unspecified")  # of mistakes, as `negbench.metrics.mistakes` defines them
CUT = 10  # images of a ranking that a person looks at
DEV_QUERIES = 1000  # least number of a generated dev split: paired rates then differ by about a point of error
GIVEN = ("guide", "judge")  # planes that a run has if `mining` names their source
OFFLINE = (*GIVEN, "listed")  # planes that no model under training computes
DEFAULT_TEMPERATURE = 0.07  # CLIP's and BLIP-2's initial value
