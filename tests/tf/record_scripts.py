"""Records the script of every code point, as the ICU library in TensorFlow numbers them: crates/kernels/src/text/scripts.txt.

Run with the Python of tests/tf/requirements.txt, from the root of the tree. Each line is the first code point of a run, in
hexadecimal, and the number of its script.
"""

import numpy as np
import tensorflow as tf

HEAD = "# The scripts of Unicode's characters by ICU's numbers; written by tests/tf/record_scripts.py.\n"

scripts = tf.strings.unicode_script(np.arange(0x110000, dtype=np.int32)).numpy()
firsts = [0, *(np.flatnonzero(np.diff(scripts)) + 1)]
with open("crates/kernels/src/text/scripts.txt", "w") as file:
    file.write(HEAD + "".join(f"{first:x} {scripts[first]}\n" for first in firsts))
