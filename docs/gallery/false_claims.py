"""Nineteen false claims: what mechanisms promise, and what an attack measures.

Every red dot is a lower bound on the epsilon of a mechanism, found by running it; the cross is what
it claims. Green is the repaired twin of each under the very same attack. `cloister museum` prints
them.
"""

import matplotlib.pyplot as plt

from cloister.audit.museum import convict, convict_repaired, each, museum

exhibits = museum()
confidence = each(0.95, 2 * len(exhibits))  # all bounds hold together with 95 %
figure, axes = plt.subplots()
for place, exhibit in enumerate(exhibits):
    broken = convict(exhibit, confidence=confidence)
    repaired = convict_repaired(exhibit, confidence=confidence)
    axes.plot([broken.claim.epsilon, broken.bound.epsilon], [place + 0.15] * 2, color="#c0392b", lw=0.8)
    axes.plot(broken.bound.epsilon, place + 0.15, "o", color="#c0392b")
    axes.plot(repaired.bound.epsilon, place - 0.15, "o", color="#1e8449")
    axes.plot(broken.claim.epsilon, place + 0.15, "x", color="#444444")
    axes.plot(repaired.claim.epsilon, place - 0.15, "x", color="#444444")
axes.set_yticks(range(len(exhibits)), [exhibit.name for exhibit in exhibits])
axes.invert_yaxis()
axes.set(xscale="symlog", xlabel="epsilon: x claimed, red measured, green measured once repaired")
axes.set_xticks([0, 0.5, 1, 2, 5, 10], ["0", "0.5", "1", "2", "5", "10"])
plt.show()
