"""Tasks made of programming problems with known programs: predict, invert, rewrite, refute.

| task | asks for | a record needs |
| --- | --- | --- |
| `OutputPrediction` | what a program prints for an input | an accepted program |
| `InputPrediction` | an input for which a program prints this | an accepted program |
| `Reconstruction` | the program, from statement and examples | two tests |
| `Falsification` | an input on which a candidate is wrong | an accepted and a rejected program |

Every program runs in the sandbox. Source: arXiv 2605.05365, Sec. VI; prompts are our own.
"""

from zaya_jax.rl.environments.code_auxiliary.falsification import Falsification
from zaya_jax.rl.environments.code_auxiliary.input_prediction import InputPrediction
from zaya_jax.rl.environments.code_auxiliary.output_prediction import OutputPrediction
from zaya_jax.rl.environments.code_auxiliary.reconstruction import Reconstruction

__all__ = ["Falsification", "InputPrediction", "OutputPrediction", "Reconstruction"]
